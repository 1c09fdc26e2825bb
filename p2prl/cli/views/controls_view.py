"""Lines about the owner's controls: what a worker does now, and its limits with where they come from."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from p2prl.quantity_text import size_text

_ORIGINS = {"default": "default", "file": "config.toml", "command": "p2prl limits", "option": "option of the start"}


def answer_line(answer: Mapping[str, Any], *, now: float) -> str:
    """A worker's state in one sentence. `answer` is a document of `p2prl.controls.messages.Answer`."""
    state = str(answer.get("state", ""))
    if state == "ending":
        return "ending: finished groups are kept"
    parts = [state if not answer.get("reason") else str(answer["reason"])]
    if state == "paused":
        until = answer.get("until")
        ends = "" if until is None or until < now else f"{time.strftime('%a %H:%M', time.localtime(until))} or "
        parts.append(f"until {ends}p2prl resume")
    if state in ("paused", "resting"):
        held = answer.get("engine_bytes")
        if not answer.get("followed", True):
            parts.append("frees its memory now")
        else:
            parts.append("its engine's memory is freed" if not held else f"its engine still holds {size_text(held)}")
        parts.append("relays weights" if answer.get("relays") else "off the network")
    return "; ".join(parts)


def limit_lines(limits: Mapping[str, Any], *, origin: bool = True) -> list[str]:
    """A line for each limit: its name, value and origin. Values are documents or `LimitShown`."""
    lines = []
    for name, shown in limits.items():
        value, came = (shown["value"], shown["origin"]) if isinstance(shown, Mapping) else (shown.value, shown.origin)
        lines.append(f"    {name:<14} {value:<26} {_ORIGINS.get(came, came) if origin else ''}".rstrip())
    return lines
