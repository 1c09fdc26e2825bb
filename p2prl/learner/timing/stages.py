"""Stages of the learner's pipeline: one job at a time, in the caller's thread or in a thread of its own.

The learner's main thread talks to the network and owns the journal; replay and training each run behind a stage. It
gives a stage a job that touches nothing of the main thread's, goes on, and takes the result when it is there.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

Job = Callable[[], Any]


class Stage(Protocol):
    """Runs one job at a time."""

    @property
    def busy(self) -> bool:
        """Whether a job was started whose result has not been taken."""
        ...

    @property
    def job_s(self) -> float:
        """Seconds of the job whose result was taken last."""
        ...

    def start(self, job: Job) -> None:
        """Run a job; the stage must not be busy."""
        ...

    def take(self, *, wait: bool = False) -> list[Any]:
        """The result of the job, if it has ended; with `wait`, once it ends. Raises what the job raised."""
        ...

    def close(self) -> None:
        """Let the job in progress end, drop its result, and free the thread."""
        ...


class InlineStage:
    """Runs each job at once in the caller's thread, as virtual time requires. The order of actions is fixed."""

    def __init__(self) -> None:
        self._results: list[Any] = []

    @property
    def busy(self) -> bool:
        return bool(self._results)

    @property
    def job_s(self) -> float:
        """In virtual time a job takes none."""
        return 0.0

    def start(self, job: Job) -> None:
        self._results.append(job())

    def take(self, *, wait: bool = False) -> list[Any]:
        del wait
        results, self._results = self._results, []
        return results

    def close(self) -> None:
        self._results = []


class ThreadStage:
    """Runs jobs in one thread, which ends with the process even in the middle of a job: the journal resumes it."""

    def __init__(self, name: str, *, on_start: Callable[[], None], on_done: Callable[[], None]) -> None:
        """`on_start` runs first in the thread, and before this returns; `on_done` in the thread after each job."""
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[tuple[Any, BaseException | None, float]] = queue.SimpleQueue()
        self._on_done = on_done
        self._busy = False
        self._job_s = 0.0
        self._thread = threading.Thread(target=self._run, args=(on_start,), name=name, daemon=True)
        self._thread.start()
        self._busy = True
        self.take(wait=True)

    @property
    def busy(self) -> bool:
        return self._busy

    @property
    def job_s(self) -> float:
        return self._job_s

    def start(self, job: Job) -> None:
        assert not self._busy
        self._busy = True
        self._jobs.put(job)

    def take(self, *, wait: bool = False) -> list[Any]:
        if not self._busy:
            return []
        try:
            result, error, self._job_s = self._ended.get(block=wait)
        except queue.Empty:
            return []
        self._busy = False
        if error is not None:
            raise error
        return [result]

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()

    def _run(self, on_start: Callable[[], None]) -> None:
        job: Job | None = on_start
        while job is not None:
            began = time.monotonic()
            try:
                self._ended.put((job(), None, time.monotonic() - began))
            except BaseException as error:  # noqa: BLE001 - raised again in the thread that takes the result
                self._ended.put((None, error, time.monotonic() - began))
            self._on_done()
            job = self._jobs.get()
