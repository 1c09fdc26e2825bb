"""The training stage: jobs that need the trainer, one after the other, their continuations, and where the time goes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from p2prl.learner.stages import Job, Stage
from p2prl.learner.training_time import Activity, TrainingTime


class TrainingStage:
    """A stage that remembers what to do with the result of its job, and measures its time."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._then: Callable[[Any], None] | None = None
        self._time = TrainingTime(time.monotonic())

    @property
    def busy(self) -> bool:
        """Whether a job was begun and not completed."""
        return self._stage.busy

    @property
    def job_s(self) -> float:
        """Seconds of the newest completed job."""
        return self._stage.job_s

    def run(self, activity: Activity, job: Job, then: Callable[[Any], None]) -> None:
        """Begin a job; `finish` passes its result to `then`, which may begin the next."""
        self.switch(activity)
        self._then = then
        self._stage.start(job)

    def finish(self, *, wait: bool) -> bool:
        """Complete the job if it has ended; with `wait`, once it ends. False when there was nothing to complete."""
        results = self._stage.take(wait=wait)
        for result in results:
            then, self._then = self._then, None
            assert then is not None
            then(result)
        return bool(results)

    def switch(self, activity: Activity) -> None:
        """From now on the thread does this, or waits for this."""
        self._time.switch(activity, time.monotonic())

    def take_shares(self) -> dict[str, float]:
        """Share of each activity since the last call, as keys of the metrics log."""
        return self._time.take_shares(time.monotonic())

    def close(self) -> None:
        """Free the thread."""
        self._stage.close()
