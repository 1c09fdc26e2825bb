"""The experiment's batches, handed out to several processes: no seed of a setting is trained twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from p2prl_lab.bench.staleness.benchmark import seeds_at_once
from p2prl_lab.bench.staleness.experiment import PARTS, Job, Part, missing_jobs, remaining_seconds
from p2prl_lab.bench.staleness.results import ResultFile, Setting
from p2prl_lab.bench.staleness.seed_log import SeedResult

_Run = tuple[str, str, str, int, int]
"""Task, method, law, updates and seed."""


class ExperimentQueue:
    """Hands out missing batches in the experiment's order, and keeps their results."""

    def __init__(self, results: ResultFile, parts: Sequence[Part] = PARTS) -> None:
        """`results` are those of earlier runs, and of what runs here once it is finished."""
        self._results = results
        self._parts = parts
        self._running: set[_Run] = set()
        self._expected_s = 0.0
        self._spent_s = 0.0

    def take(self, count: int, *, within_s: float = float("inf")) -> list[Job]:
        """Up to `count` batches that nobody runs, each expected to end `within_s` seconds from now.

        Fewer when no more are known: settings follow from the results of others.
        """
        taken: list[Job] = []
        if count < 1:
            return taken
        for job in missing_jobs(self._results, self._parts):
            free = tuple(seed for seed in job.seeds if _run_of(job, seed) not in self._running)
            for batch in _batches(replace(job, seeds=free)):
                if batch.seconds * self._pace <= within_s:
                    self._running.update(_run_of(batch, seed) for seed in batch.seeds)
                    taken.append(batch)
                if len(taken) == count:
                    return taken
        return taken

    def finish(self, job: Job, found: dict[Setting, list[SeedResult]], *, spent_s: float) -> None:
        """Keep the results of a batch that took `spent_s` seconds of processor time."""
        for setting, results in found.items():
            self._results.add(setting, results)
        self._running.difference_update(_run_of(job, seed) for seed in job.seeds)
        self._expected_s += job.seconds
        self._spent_s += spent_s

    @property
    def remaining_hours(self) -> float:
        """Expected processor time of all that is missing; what runs counts as missing."""
        return remaining_seconds(self._results, self._parts) * self._pace / 3600

    @property
    def _pace(self) -> float:
        """Seconds of processor time for each expected one, as seen here."""
        return self._spent_s / self._expected_s if self._expected_s else 1.0


def _run_of(job: Job, seed: int) -> _Run:
    return job.part.task, job.method, job.law, job.updates, seed


def _batches(job: Job) -> Iterator[Job]:
    """The job in batches of the seeds that are trained side by side."""
    size = seeds_at_once(job.part.task)
    for start in range(0, len(job.seeds), size):
        yield replace(job, seeds=job.seeds[start : start + size])
