"""Events of a running worker as lines of JSON on standard output, for scripts that follow it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from p2prl.cli.views.worker_screen import is_offline

_ENDS = ("verified", "rejected", "expired")
"""States of a group that are final."""


class EventLines:
    """Writes an event when something changes; nothing at all unless asked."""

    def __init__(self, *, asked: bool, now: Callable[[], float] = time.time) -> None:
        self._asked = asked
        self._now = now
        self._before: Mapping[str, Any] = {}

    def phase(self, name: str, detail: str = "") -> None:
        """A phase of the start begins."""
        self._write("phase", name=name, detail=detail)

    def notice(self, text: str) -> None:
        """The owner was told something."""
        self._write("notice", text=text)

    def progress(self, document: Mapping[str, Any]) -> None:
        """The newest status document: changes of state, version, links and judged groups become events."""
        before, self._before = self._before, document
        if document["state"] != before.get("state"):
            self._write("state", state=document["state"], resting=document["resting"])
        if document["version"] != before.get("version", -1):
            self._write("version", version=document["version"], learner_step=document["learner_step"])
        if before and is_offline(document) != is_offline(before):
            self._write("offline" if is_offline(document) else "online", peers=document["peers"])
        groups, earlier = document["groups"], before.get("groups", {})
        if before and any(groups.get(state, 0) > earlier.get(state, 0) for state in _ENDS):
            self._write(
                "judged",
                groups=dict(groups),
                reasons=document["reasons"],
                verified_tokens=document["verified_tokens"],
            )

    def _write(self, event: str, **values: Any) -> None:
        if self._asked:
            line = json.dumps({"event": event, "time": round(self._now(), 3), **values}, sort_keys=True)
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
