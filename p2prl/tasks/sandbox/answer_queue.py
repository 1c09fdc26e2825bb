"""Order of answers before the lanes: authors in turn, and no author, slow answer or suspect keeps honest ones waiting.

Pure: lanes and their lock live in `pool`. Three rules keep a lane free:

* One account occupies all lanes but one at most.
* Accounts with recent overruns share one lane.
* There are twice as many lanes as workers that should compute at a time. An answer that turns out slow gives its place
  back, so that a lane beyond the number of workers goes on with the next; a hung answer blocks nobody until it is
  killed.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

B = TypeVar("B")

MAX_JOB_ANSWERS = 64
"""Answers in one job for a worker: enough that the round trip costs little."""

MAX_JOB_CHARS = 262_144
"""Text of one job, unless its only answer is longer: what a worker holds at once."""


@dataclass(eq=False)
class Job(Generic[B]):
    """Answers of one author to one row of a task, for one worker."""

    batch: B
    """The call that these answers belong to."""
    account: bytes
    numbers: tuple[int, ...]
    """Positions of the answers in the call."""
    attempts: int = 0
    """Workers that ended while they scored the first of these answers."""
    slow: bool = field(default=False, init=False)
    suspect: bool = field(default=False, init=False)


class AnswerQueue(Generic[B]):
    """Jobs that wait, by account, and those that run."""

    def __init__(self, workers: int) -> None:
        """`workers`: jobs that compute at a time, at least 1."""
        self._workers = workers
        self._waiting: OrderedDict[bytes, deque[Job[B]]] = OrderedDict()
        self._running: Counter[bytes] = Counter()
        self._quick = 0
        self._suspects = 0

    @property
    def lanes(self) -> int:
        """Jobs that may run at a time, slow ones included."""
        return 2 * self._workers

    def __len__(self) -> int:
        """Jobs that wait."""
        return sum(map(len, self._waiting.values()))

    def add(self, job: Job[B], *, first: bool = False) -> None:
        """Queue a job behind its author's others, or before them."""
        jobs = self._waiting.setdefault(job.account, deque())
        if first:
            jobs.appendleft(job)
        else:
            jobs.append(job)

    def take(self, is_suspect: Callable[[bytes], bool]) -> Job[B] | None:
        """The next job that may run now; its author then waits for the others' turns."""
        if self._quick >= self._workers:
            return None
        for account in self._waiting:
            suspect = is_suspect(account)
            if self._running[account] < self.lanes - 1 and not (suspect and self._suspects):
                return self._start(account, suspect=suspect)
        return None

    def drain(self) -> list[Job[B]]:
        """Remove and return the jobs that wait."""
        jobs = [job for jobs in self._waiting.values() for job in jobs]
        self._waiting.clear()
        return jobs

    def _start(self, account: bytes, *, suspect: bool) -> Job[B]:
        jobs = self._waiting[account]
        job = jobs.popleft()
        if jobs:
            self._waiting.move_to_end(account)
        else:
            del self._waiting[account]
        job.slow, job.suspect = False, suspect
        self._running[account] += 1
        self._quick += 1
        self._suspects += suspect
        return job

    def mark_slow(self, job: Job[B]) -> None:
        """The running job takes long: another may start beside it."""
        if not job.slow:
            job.slow = True
            self._quick -= 1

    def finish(self, job: Job[B]) -> None:
        """The job no longer runs."""
        self._quick -= not job.slow
        self._suspects -= job.suspect
        self._running[job.account] -= 1
        if not self._running[job.account]:
            del self._running[job.account]


def split(lengths: Sequence[int], *, together: bool) -> list[tuple[int, ...]]:
    """Positions of answers (by their lengths in characters) for each job; one answer each unless `together`."""
    if not together:
        return [(number,) for number in range(len(lengths))]
    jobs: list[tuple[int, ...]] = []
    current: list[int] = []
    chars = 0
    for number, length in enumerate(lengths):
        if current and (len(current) == MAX_JOB_ANSWERS or chars + length > MAX_JOB_CHARS):
            jobs.append(tuple(current))
            current, chars = [], 0
        current.append(number)
        chars += length
    return [*jobs, tuple(current)] if current else jobs
