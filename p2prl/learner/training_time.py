"""Time of the training thread by activity: how busy it is, and what it waits for. Pure."""

from __future__ import annotations

from collections import defaultdict
from enum import StrEnum


class Activity(StrEnum):
    """What the training thread does. The values are keys of the metrics log."""

    UPDATE = "busy"
    PUBLISH = "publishing"
    """Copying the weights of a version, or waiting until the version before it is sent."""
    CHECKPOINT = "checkpoint"
    WAIT_GROUPS = "waiting_groups"
    """Idle: no stored group waits for its check."""
    WAIT_REPLAY = "waiting_replay"
    """Idle: groups are stored, but too few are verified."""


class TrainingTime:
    """Accumulates seconds per activity between two readings."""

    def __init__(self, now: float) -> None:
        self._activity = Activity.WAIT_GROUPS
        self._since = now
        self._seconds: defaultdict[Activity, float] = defaultdict(float)

    def switch(self, activity: Activity, now: float) -> None:
        """From now on the thread does this."""
        self._seconds[self._activity] += now - self._since
        self._activity, self._since = activity, now

    def take_shares(self, now: float) -> dict[str, float]:
        """Share of each activity since the last reading, as keys of the metrics log; empty when no time has passed."""
        self.switch(self._activity, now)
        total = sum(self._seconds.values())
        shares = {f"training/{each}": self._seconds[each] / total for each in Activity} if total > 0.0 else {}
        self._seconds.clear()
        return shares
