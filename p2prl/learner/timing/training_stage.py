"""The training stage: work that needs the trainer, one piece after the other, and where the thread's time goes."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Generator, Mapping
from enum import StrEnum
from typing import Any

from p2prl.learner.timing.stages import Job, Stage


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


_AT_WORK = (Activity.UPDATE, Activity.PUBLISH, Activity.CHECKPOINT)

Work = Generator[tuple[Activity, Job], Any, None]
"""Work of the main thread that yields jobs for the training thread, and gets back the result of each."""


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


def share_at_work(shares: Mapping[str, float]) -> float:
    """Of the shares of `TrainingTime.take_shares`, the time in which the thread did not wait for groups."""
    return math.fsum(shares.get(f"training/{each}", 0.0) for each in _AT_WORK)


def share_without_groups(shares: Mapping[str, float]) -> float:
    """Of the same, the time in which volunteers were the limit: no group waited for its check."""
    return shares.get(f"training/{Activity.WAIT_GROUPS}", 0.0)


class TrainingStage:
    """Runs one piece of work at a time: its jobs behind a stage, the rest in the main thread. Measures its time."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._work: Work | None = None
        self._time = TrainingTime(time.monotonic())

    @property
    def busy(self) -> bool:
        """Whether a job was begun and not completed."""
        return self._stage.busy

    @property
    def job_s(self) -> float:
        """Seconds of the newest completed job."""
        return self._stage.job_s

    def run(self, work: Work) -> None:
        """Begin work: what comes before its first job happens at once. `finish` goes on with it."""
        assert not self.busy
        self._work = work
        self._go_on(None)

    def finish(self, *, wait: bool = False) -> None:
        """Go on with the work as far as its jobs have ended; with `wait`, to its end. Raises what a job raised."""
        while results := self._stage.take(wait=wait):
            self._go_on(results[0])

    def waits_for(self, activity: Activity) -> None:
        """The reason why no job runs, for the metrics."""
        if not self.busy:
            self._time.switch(activity, time.monotonic())

    def take_shares(self) -> dict[str, float]:
        """Share of each activity since the last call, as keys of the metrics log."""
        return self._time.take_shares(time.monotonic())

    def close(self) -> None:
        """Free the thread."""
        self._stage.close()

    def _go_on(self, result: Any) -> None:
        assert self._work is not None
        try:
            activity, job = self._work.send(result)
        except StopIteration:
            self._work = None
        else:
            self._time.switch(activity, time.monotonic())
            self._stage.start(job)
