"""Reading what running roles write: status files and metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_status(path: Path) -> dict[str, Any]:
    """A status file, or nothing while it is not there."""
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a JSON-lines file; a last line still being written is left out."""
    try:
        data = path.read_bytes()
    except OSError:
        return []
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]
