"""Files of JSON lines that a role appends to: a kill leaves the last unfinished, a power failure damages any."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_NAMED = 8
"""Unreadable lines that a notice names."""


@dataclass(frozen=True, slots=True)
class JsonLines:
    """What a file holds."""

    objects: list[dict[str, Any]] = field(default_factory=list)
    unreadable: list[int] = field(default_factory=list)
    """Numbers, from 1, of the lines without one. An unfinished last line is not among them."""

    def notice(self, path: Path) -> str:
        """A sentence for the user about unreadable lines; empty when there are none."""
        if not self.unreadable:
            return ""
        numbers = ", ".join(map(str, self.unreadable[:_NAMED])) + (" …" if len(self.unreadable) > _NAMED else "")
        return (
            f"{path}: skipped {len(self.unreadable)} unreadable line(s), as a power failure leaves them: {numbers}."
            " Delete them to end this notice."
        )


def read_json_lines(path: Path, *, required: dict[str, type] | None = None) -> JsonLines:
    """The objects of a file; none if it is missing. Objects without a key of `required`, of that type, are unreadable.

    The last line counts when its end is there: a role may be writing it.
    """
    try:
        data = path.read_bytes()
    except OSError:
        return JsonLines()
    found = JsonLines()
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].split(b"\n")[:-1], start=1):
        if (document := _object(line, required or {})) is None:
            found.unreadable.append(number)
        else:
            found.objects.append(document)
    return found


def remove_unfinished_line(path: Path) -> None:
    """Cut what follows the last end of a line, before a file is appended to. Nothing happens if it is missing."""
    if not path.exists():
        return
    data = path.read_bytes()
    complete = data.rfind(b"\n") + 1
    if complete < len(data):
        os.truncate(path, complete)


def _object(line: bytes, required: dict[str, type]) -> dict[str, Any] | None:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_usable = isinstance(document, dict) and all(type(document.get(key)) is kind for key, kind in required.items())
    return document if is_usable else None
