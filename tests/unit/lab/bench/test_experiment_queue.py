"""The experiment's queue: several batches at once, each seed of a setting once, and nothing that would end too late."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from p2prl_lab.bench.staleness.experiment import DEFAULT, LAWS, TUNING_LAW, CompactResults, Job, Part, next_job
from p2prl_lab.bench.staleness.experiment_queue import ExperimentQueue
from p2prl_lab.bench.staleness.results import Setting
from p2prl_lab.bench.staleness.seed_log import SeedResult
from tests.unit.lab.bench.test_experiment import result

METHODS = (DEFAULT, "grpo+amsgrad")
PARTS = (
    Part(task="chain4", methods=METHODS, laws=LAWS[:2], seconds=0.5),
    Part(task="split4", methods=METHODS, laws=LAWS[:1], seconds=0.5),
)
LONG = (Part(task="march512", methods=(DEFAULT,), laws=(TUNING_LAW,), halves=1, seconds=0.5),)


def found_in(job: Job) -> dict[Setting, list[SeedResult]]:
    """Results as a batch of training would give, better at the higher rate."""
    greedy = 0.9 if "lr=0.001" in job.method else 0.6
    settings = [Setting.of(job.part.task, job.method, job.law, plan) for plan in (job.plan, *job.shorter)]
    return {setting: [result(seed, greedy) for seed in job.seeds] for setting in settings}


def runs_of(job: Job) -> set[tuple[str, str, str, int, int]]:
    lengths = (plan.updates for plan in (job.plan, *job.shorter))
    return {(job.part.task, job.method, job.law, n, seed) for n in lengths for seed in job.seeds}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> CompactResults:
    """Results of one batch after the other."""
    results = CompactResults(tmp_path_factory.mktemp("alone") / "runs.jsonl")
    while (job := next_job(results, PARTS)) is not None:
        for setting, found in found_in(job).items():
            results.add(setting, found)
    return results


@pytest.mark.parametrize("side_by_side", [2, 7])
def test_side_by_side_gives_what_one_after_the_other_gives(
    tmp_path: Path, alone: CompactResults, side_by_side: int
) -> None:
    results = CompactResults(tmp_path / "runs.jsonl")
    queue, running, begun = ExperimentQueue(results, PARTS), list[Job](), set[tuple[str, str, str, int, int]]()
    for turn in itertools.count():
        running += (taken := queue.take(side_by_side - len(running)))
        assert len(running) <= side_by_side
        for job in taken:
            assert not runs_of(job) & begun, "a seed of a setting is trained once"
            begun |= runs_of(job)
        if not running:
            break
        job = running.pop(-(turn % 2))  # the first or the last begun
        queue.finish(job, found_in(job), spent_s=job.seconds)
    assert set(results.settings()) == set(alone.settings())
    seeds = range(200)
    for setting in alone.settings():
        assert {each.seed for each in results.of(setting, seeds)} == {each.seed for each in alone.of(setting, seeds)}
    assert queue.remaining_hours == 0.0


def test_long_completions_are_trained_a_seed_at_a_time(tmp_path: Path) -> None:
    queue = ExperimentQueue(CompactResults(tmp_path / "runs.jsonl"), LONG)
    assert [job.seeds for job in queue.take(5)] == [(100,), (101,), (102,), (103,), (104,)]
    assert all(job.seeds == (100,) for job in queue.take(1)), "of the next setting"


def test_nothing_is_begun_that_would_end_too_late(tmp_path: Path) -> None:
    results = CompactResults(tmp_path / "runs.jsonl")
    queue = ExperimentQueue(results, PARTS)
    (job,) = queue.take(1, within_s=10_000)
    assert queue.take(1, within_s=job.seconds - 1) == []
    queue.finish(job, found_in(job), spent_s=job.seconds / 4)
    assert queue.take(1, within_s=job.seconds - 1), "batches end four times as early here as expected"
    left = ExperimentQueue(results, PARTS)
    assert queue.remaining_hours == pytest.approx(left.remaining_hours / 4)


def test_no_more_than_asked_for(tmp_path: Path) -> None:
    queue = ExperimentQueue(CompactResults(tmp_path / "runs.jsonl"), PARTS)
    assert queue.take(0) == []
    assert len(queue.take(3)) == 3
