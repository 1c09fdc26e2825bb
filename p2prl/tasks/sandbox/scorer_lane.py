"""Score one answer after the other in a worker, and settle what becomes of those that fail: too slow, too large, ended.

A lane is a thread of the pool with one worker, which it replaces when it has killed it.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Protocol

from p2prl.errors import MachineError
from p2prl.tasks.sandbox import frames
from p2prl.tasks.sandbox.answer_queue import Job
from p2prl.tasks.sandbox.batch import ENDED, ERROR, MEMORY, TIMEOUT, VALUE, Batch, ScoredAnswer
from p2prl.tasks.sandbox.fork_server import ForkServer
from p2prl.tasks.sandbox.frames import Reply
from p2prl.tasks.sandbox.worker_process import WorkerEndedError, WorkerProcess

SLOW_S = 0.1
"""An answer that takes longer gives its place to others meanwhile, seconds."""

LONG_S = 0.5
"""An answer that takes longer leaves a busy processor to others. Not sooner: an honest one may share it with many."""

_RETRY_S = 0.5
"""A worker that ended sooner is replaced and the answer tried once more: the system may have killed it for memory that
others took. Later there is no time for it."""

_MAX_ANSWERS = 5_000
"""Answers of a worker before it is replaced, which costs milliseconds: so that no leak lasts."""

_MAX_STARTS = 3
"""Workers that end before they are ready, one after the other: then the machine is at fault."""


class Dispatcher(Protocol):
    """The pool, as its lanes see it. Every method may be called from any thread."""

    def next_job(self) -> Job[Batch] | None:
        """Wait for a job; None when the pool closes."""
        ...

    def limit_s(self, account: bytes) -> float:
        """Seconds for the account's next answer."""
        ...

    def settle(self, job: Job[Batch], answer: ScoredAnswer, *, overrun: bool = False) -> None:
        """Store the score of the job's first answer, and drop that answer from the job."""
        ...

    def mark_slow(self, job: Job[Batch]) -> None: ...

    def fail(self, job: Job[Batch], error: Exception) -> None:
        """End the job's call with an error of this machine."""
        ...

    def finish(self, job: Job[Batch]) -> None:
        """The job no longer runs; answers that are left in it are queued again."""
        ...


class Lane(threading.Thread):
    """One lane."""

    def __init__(self, server: ForkServer, dispatcher: Dispatcher, *, number: int) -> None:
        super().__init__(name=f"scorer-lane-{number}", daemon=True)
        self._server = server
        self._dispatcher = dispatcher
        self._worker: WorkerProcess | None = None

    def run(self) -> None:
        """Score until the pool closes."""
        while (job := self._dispatcher.next_job()) is not None:
            try:
                self._score(job)
            except Exception as error:  # noqa: BLE001  # the caller gets it; the lane lives on
                self._dispatcher.fail(job, error)
            self._dispatcher.finish(job)
            self._replace(once=job.batch.task in self._server.third_party)
        with suppress(Exception):
            self._discard()

    def _score(self, job: Job[Batch]) -> None:
        """Score the job's answers until one of them costs the worker."""
        once = job.batch.task in self._server.third_party
        worker = self._ready_worker(once=once)
        limit_s = self._dispatcher.limit_s(job.account)
        answers = [job.batch.completions[number] for number in job.numbers]
        request = frames.request_frame(job.batch.task, job.batch.row, answers, limit_s)
        started = time.monotonic()
        try:
            worker.send(request, until=started + limit_s)
            for place in range(len(answers)):
                reply = self._reply(worker, place, job, started=started, limit_s=limit_s)
                if reply.kind == frames.OUT_OF_MEMORY:
                    self._discard()
                    self._dispatcher.settle(job, ScoredAnswer(0.0, MEMORY), overrun=True)
                    return
                self._dispatcher.settle(job, _scored(reply))
                started = time.monotonic()
        except TimeoutError:
            self._discard()
            self._dispatcher.settle(job, ScoredAnswer(0.0, TIMEOUT), overrun=True)
        except WorkerEndedError:
            self._discard()
            if worker.server != self._server.pid:
                return  # its fork server died and took it along: not the answer's doing, so it is scored again
            job.attempts += 1
            if job.attempts > 1 or time.monotonic() - started > _RETRY_S:
                self._dispatcher.settle(job, ScoredAnswer(0.0, ENDED), overrun=True)
        else:
            if once or worker.yields or worker.scored >= _MAX_ANSWERS:
                self._discard()

    def _reply(self, worker: WorkerProcess, place: int, job: Job[Batch], *, started: float, limit_s: float) -> Reply:
        with suppress(TimeoutError):
            return worker.reply(place, until=started + SLOW_S)
        self._dispatcher.mark_slow(job)
        if limit_s > LONG_S:
            with suppress(TimeoutError):
                return worker.reply(place, until=started + LONG_S)
            worker.yield_processor()
        return worker.reply(place, until=started + limit_s)

    def _ready_worker(self, *, once: bool) -> WorkerProcess:
        """A worker that is ready. `MachineError` when none starts."""
        for _ in range(_MAX_STARTS):
            if self._worker is not None and self._worker.once != once:
                self._discard()
            worker = self._worker or self._prepare(once=once)
            try:
                worker.wait_until_ready()
            except WorkerEndedError:
                self._discard()
            else:
                return worker
        raise MachineError(
            "the processes that score answers do not start",
            remedy="Check that memory and processes are left on this machine (ulimit -a).",
        )

    def _replace(self, *, once: bool) -> None:
        """Have a new worker start before the next job comes."""
        if self._worker is None:
            with suppress(Exception):  # closed, or a fault that the next job will meet and report
                self._prepare(once=once)

    def _prepare(self, *, once: bool) -> WorkerProcess:
        self._worker = self._server.fork(once=once)
        return self._worker

    def _discard(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            self._server.end(worker)


def _scored(reply: Reply) -> ScoredAnswer:
    if reply.kind == frames.SCORED:
        return ScoredAnswer(reply.value, parts=reply.parts)
    reason = VALUE if reply.kind == frames.NOT_A_SCORE else ERROR
    return ScoredAnswer(0.0, f"{reason}: {reply.error}")
