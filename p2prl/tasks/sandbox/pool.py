"""The scorer pool: scores strangers' completions in sandboxed processes, for the learner and for validators.

The pool's process holds a signing key, so a completion is never scored in it. Scorers are built in the fork server,
which forks confined workers; a lane of the pool (a thread) sends answers to a worker and kills it when time is up.
Scorers that run third-party code get a process of their own for every answer. `docs/sandbox.md` has the threat model.

Calls from several threads share the lanes fairly by account; one call waits until all of its answers are scored.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from p2prl.confinement.children import Launch
from p2prl.confinement.layers import ALL_LAYERS, NEEDED_LAYERS
from p2prl.errors import LocalProtocolError, MachineError, require
from p2prl.tasks.data.packed_data import MAX_ROW_BYTES, Row
from p2prl.tasks.sandbox import frames
from p2prl.tasks.sandbox.answer_limits import ANSWER_MEMORY_MB, ANSWER_S
from p2prl.tasks.sandbox.answer_queue import AnswerQueue, Job, split
from p2prl.tasks.sandbox.batch import ROW, TOO_LONG, Batch, ScoredAnswer
from p2prl.tasks.sandbox.fork_server import ForkServer, ForkServerSettings
from p2prl.tasks.sandbox.overrun_ledger import SHORTEST_LIMIT_S, OverrunLedger
from p2prl.tasks.sandbox.scorer_lane import Lane
from p2prl.tasks.task import MAX_SCORED_CHARS

__all__ = ["PoolConfig", "PoolStatistics", "Protection", "ScoredAnswer", "ScorerPool", "TaskScoring"]

_CLOSE_S = 10.0
"""How long lanes may take to end."""

_MOST_WORKERS = 4
"""Workers unless asked for more: scoring is small beside sampling and training."""


@dataclass(frozen=True)
class TaskScoring:
    """Scoring of one task."""

    spec: str
    """Scorers and weights, canonical JSON, as in the run's manifest."""
    code: Path | None = None
    """The researcher's Python file, if the spec names it."""


@dataclass(frozen=True, kw_only=True)
class PoolConfig:
    """Limits of a pool."""

    workers: int = 0
    """Answers that are scored at a time; 0 chooses by the machine's cores. Slow answers do not count."""
    limit_s: float = ANSWER_S
    """Wall-clock seconds for one answer."""
    memory_mb: int = ANSWER_MEMORY_MB
    """Memory of a worker beyond that of the scorers themselves, 1e6 bytes."""
    require_layers: bool = False
    """Refuse third-party scorers, before they are imported, on a system without Landlock or seccomp."""

    def __post_init__(self) -> None:
        require("workers", self.workers, 0 <= self.workers <= 256, "0 to 256")
        require("limit_s", self.limit_s, SHORTEST_LIMIT_S <= self.limit_s <= 60, f"{SHORTEST_LIMIT_S} to 60")
        require("memory_mb", self.memory_mb, 16 <= self.memory_mb <= 1_000_000, "16 to 1000000")

    def worker_count(self) -> int:
        """Workers on this machine: half its cores, 2 to 4, so that one hung answer never stops all."""
        return self.workers or max(2, min(_MOST_WORKERS, (os.cpu_count() or 1) // 2))


@dataclass(frozen=True)
class Protection:
    """Layers of protection around the workers of a pool."""

    layers: tuple[str, ...]
    """Active layers, strongest first."""
    missing: tuple[str, ...]
    """Layers that this system does not offer."""

    @property
    def confines(self) -> bool:
        """Whether third-party code can neither read keys nor reach other programs."""
        return not set(NEEDED_LAYERS) & set(self.missing)

    def __str__(self) -> str:
        missing = f"; not on this system: {', '.join(self.missing)}" if self.missing else ""
        return ", ".join(self.layers) + missing


@dataclass(frozen=True)
class PoolStatistics:
    """Counts since the pool's start."""

    answers: Mapping[str, int]
    """Answers by task."""
    failures: Mapping[tuple[str, str], int]
    """Answers that failed, by task and reason (the part of `ScoredAnswer.failure` before its colon)."""
    overruns: int
    """Workers killed or lost, each charged to an account."""


class ScorerPool:
    """Scores completions of data tasks. Safe to use from several threads; close it, or use it as a context manager."""

    def __init__(
        self,
        tasks: Mapping[str, TaskScoring],
        config: PoolConfig = PoolConfig(),
        *,
        builder: str = "p2prl.tasks.scorers.build",
        launch: Launch | None = None,
    ) -> None:
        """Build every task's scorers, in another process.

        `launch` starts it, where this process may start none. `builder` is a module with `build_scorer(spec, code)` and
        `runs_third_party_code(spec)`. `ConfigError` when a scorer cannot be built, `MachineError` when the process does
        not start.
        """
        self._tasks = frozenset(tasks)
        self._ledger = OverrunLedger(config.limit_s)
        self._queue: AnswerQueue[Batch] = AnswerQueue(config.worker_count())
        self._changed = threading.Condition()
        self._closed = False
        self._answers: Counter[str] = Counter()
        self._failures: Counter[tuple[str, str]] = Counter()
        self._overruns = 0
        # The process is in another folder.
        files = {name: None if task.code is None else str(task.code.absolute()) for name, task in tasks.items()}
        scoring = {name: (task.spec, files[name]) for name, task in tasks.items()}
        self._server = ForkServer(
            ForkServerSettings(
                tasks=scoring,
                builder=builder,
                memory_bytes=config.memory_mb * 1_000_000,
                limit_s=config.limit_s,
                require_layers=config.require_layers,
            ),
            launch,
        )
        self._lanes = [Lane(self._server, self, number=number) for number in range(self._queue.lanes)]
        try:
            for lane in self._lanes:
                lane.start()
        except RuntimeError as error:
            self.close()
            raise MachineError(f"the pool's threads do not start: {error}", remedy="Check ulimit -u.") from error

    def __enter__(self) -> ScorerPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def protection(self) -> Protection:
        """Layers of protection on this system."""
        layers = self._server.layers
        return Protection(layers, tuple(layer for layer in ALL_LAYERS if layer not in layers))

    @property
    def runs_third_party_code(self) -> bool:
        """Whether a task's scorers run code that p2prl did not bring."""
        return bool(self._server.third_party)

    @property
    def fork_server_pid(self) -> int:
        """Process id of the fork server, which leads a session of its own."""
        return self._server.pid

    @property
    def statistics(self) -> PoolStatistics:
        """Counts since the start, for warnings about scorers that fail on everything."""
        with self._changed:
            return PoolStatistics(dict(self._answers), dict(self._failures), self._overruns)

    def score(
        self, task: str, row: Row, completions: Sequence[tuple[str, bool]], *, account: bytes
    ) -> tuple[ScoredAnswer, ...]:
        """Scores of completions (text without its stop token, whether a stop token ended it) of one row, in order.

        `account` is the author's public key: what its answers overrun is charged to it. An answer that fails scores 0
        and says why. `MachineError` when no worker can be had.
        """
        return self.submit(task, row, completions, account=account).result()

    def submit(
        self, task: str, row: Row, completions: Sequence[tuple[str, bool]], *, account: bytes
    ) -> Future[tuple[ScoredAnswer, ...]]:
        """As `score`, without waiting."""
        if task not in self._tasks:
            raise LocalProtocolError(f"the pool has no task {task!r}")
        try:
            row_json = frames.json_bytes(row)
        except (ValueError, TypeError, RecursionError):
            row_json = b""
        batch = Batch(task, row_json, completions)
        if not completions:
            batch.future.set_result(())
            return batch.future
        with self._changed:
            if self._closed:
                raise LocalProtocolError("the scorer pool is closed")
            self._changed.notify(self._add(batch, account))
        return batch.future

    def _add(self, batch: Batch, account: bytes) -> int:
        """Queue a call's jobs and return their number."""
        if not 0 < len(batch.row) <= MAX_ROW_BYTES:
            for number in range(len(batch.completions)):
                self._store(batch, number, ScoredAnswer(0.0, ROW))
            return 0
        lengths = [len(text) for text, _finished in batch.completions]
        short = [number for number, length in enumerate(lengths) if length <= MAX_SCORED_CHARS]
        for number in sorted(set(range(len(lengths))) - set(short)):
            self._store(batch, number, ScoredAnswer(0.0, TOO_LONG))
        together = batch.task not in self._server.third_party
        jobs = split([lengths[number] for number in short], together=together)
        for places in jobs:
            self._queue.add(Job(batch, account, tuple(short[place] for place in places)))
        return len(jobs)

    def close(self) -> None:
        """End every process. Calls that wait get a `LocalProtocolError`."""
        with self._changed:
            self._closed = True
            for job in self._queue.drain():
                job.batch.fail(LocalProtocolError("the scorer pool was closed"))
            self._changed.notify_all()
        self._server.close()
        for lane in self._lanes:
            if lane.is_alive():
                lane.join(_CLOSE_S)

    # For the lanes.

    def next_job(self) -> Job[Batch] | None:
        with self._changed:
            while not self._closed:
                job = self._queue.take(self._is_suspect)
                if job is not None:
                    return job
                self._changed.wait()
            return None

    def _is_suspect(self, account: bytes) -> bool:
        return self._ledger.count(account, time.monotonic()) > 0

    def limit_s(self, account: bytes) -> float:
        with self._changed:
            return self._ledger.limit_s(account, time.monotonic())

    def settle(self, job: Job[Batch], answer: ScoredAnswer, *, overrun: bool = False) -> None:
        with self._changed:
            number, *rest = job.numbers
            job.numbers, job.attempts = tuple(rest), 0
            if overrun:
                self._overruns += 1
                self._ledger.charge(job.account, time.monotonic())
            self._store(job.batch, number, answer)

    def mark_slow(self, job: Job[Batch]) -> None:
        with self._changed:
            self._queue.mark_slow(job)
            self._changed.notify()

    def fail(self, job: Job[Batch], error: Exception) -> None:
        with self._changed:
            job.numbers = ()
            job.batch.fail(error)

    def finish(self, job: Job[Batch]) -> None:
        with self._changed:
            self._queue.finish(job)
            if job.numbers and self._closed:
                job.batch.fail(LocalProtocolError("the scorer pool was closed"))
            elif job.numbers:
                self._queue.add(job, first=True)
            self._changed.notify()

    def _store(self, batch: Batch, number: int, answer: ScoredAnswer) -> None:
        self._answers[batch.task] += 1
        if answer.failure:
            self._failures[batch.task, answer.failure.partition(":")[0]] += 1
        batch.set(number, answer)
