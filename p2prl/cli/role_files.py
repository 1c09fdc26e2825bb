"""Read the status file that a running role writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_status(path: Path) -> dict[str, Any]:
    """Read a status file; empty if it is missing or damaged."""
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
