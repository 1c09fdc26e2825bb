"""Read the files that running roles write: `status.json` and `metrics.jsonl`."""

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


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Read a JSON-lines file, without a last line that is still being written."""
    try:
        data = path.read_bytes()
    except OSError:
        return []
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]
