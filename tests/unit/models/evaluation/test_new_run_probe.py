"""Probe of a policy: it samples what a volunteer would, and ends in time with whole batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2prl.models.evaluation.new_run_probe import probe
from p2prl.models.sampling import sample_all
from p2prl.protocol.digests import digest
from p2prl.tasks.new_run_verdict import figures_of
from tests.unit.learner.small_run import SmallRun
from tests.unit.models.data_run import DataRun


@pytest.fixture
def run(tmp_path: Path) -> Iterator[SmallRun]:
    made = SmallRun(tmp_path, group_size=3)
    yield made
    made.close()


class Clock:
    """Advances by `step` at each reading."""

    def __init__(self, step: float) -> None:
        self._times = itertools.count()
        self._step = step

    def now(self) -> float:
        return next(self._times) * self._step


def test_a_probe_is_what_a_volunteer_would_sample(run: SmallRun) -> None:
    shares = list[float]()
    result = probe(run.sampler, run.work, groups=11, limit_s=60.0, clock=Clock(1e-6), on_progress=shares.append)
    nobody = digest("p2prl/probe/v1", b"")
    rewards, made = [], []
    for slot in range(11):
        assignment = run.work.assign(beacon=nobody, peer=nobody, slot=slot)
        group = sample_all(run.sampler, assignment.requests)
        rewards.append(run.work.rewards(assignment, [each.token_ids for each in group]))
        made += group
    expected = figures_of(rewards, [len(each.token_ids) for each in made], sum(not each.finished for each in made))
    assert result.tasks == {"chain4": expected}
    assert (result.groups, result.complete) == (11, True)
    assert result.tokens_per_s > 0
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_a_slow_machine_ends_in_time_with_what_it_has(run: SmallRun) -> None:
    clock = Clock(1.0)
    result = probe(run.sampler, run.work, groups=64, limit_s=20.0, clock=clock, on_progress=lambda _: None)
    assert clock.now() <= 20.0 + 12.0
    assert 0 < result.groups < 64
    assert not result.complete
    assert result.tasks["chain4"].groups == result.groups


def test_a_machine_that_ends_no_group_says_so(run: SmallRun) -> None:
    result = probe(run.sampler, run.work, groups=64, limit_s=1.0, clock=Clock(2.0), on_progress=lambda _: None)
    assert (result.groups, result.tasks, result.complete) == (0, {}, False)


def test_answers_that_the_scorer_fails_on_are_counted_by_task(run: SmallRun) -> None:
    data = DataRun(run)
    data.scorer.broken = "timeout"
    result = probe(run.sampler, data.learner, groups=8, limit_s=60.0, clock=Clock(1e-6), on_progress=lambda _: None)
    assert (result.tasks["sums"].failed_share, set(result.tasks["sums"].failures)) == (1.0, {"timeout"})
    assert (result.tasks["chain4"].failed_share, result.tasks["chain4"].failures) == (0.0, ())
