"""Forecasts: their figures on fleets that leave no doubt, what they advise, and that the advice helps."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from p2prl.learner.timing.capacity import Demand, SamplingMachine
from p2prl.planning.fleet import Fleet, MachineRow, PlannedLearner, PlannedRun
from p2prl.planning.fleet_advice import Advice, advise
from p2prl.planning.fleet_capacity import capacity_of_fleet
from p2prl.planning.utilization_forecast import _quantile, forecast, simulate_run, utilization_of

HERE = Path()
DEMAND = Demand(groups_per_update=16, update_s=20.0, staleness_bound=64, publish_every=2)
HOME = MachineRow(name="home", count=12, card="rtx3060", share_of_time=0.7, session_hours=6.0)
FLEET = Fleet(learner=PlannedLearner(card="h100", upload_mbit=1000), machines=(HOME,), run=PlannedRun(model="1.5b"))

SLOW_LINK = {"upload_mbit": 10.0}
ONE_AT_A_TIME = {"count": 60, "slots": 1, "card": "", "tokens_per_s": 130.0}


def advice_on(fleet: Fleet) -> Advice:
    return advise(fleet, partial(capacity_of_fleet, folder=HERE))


def test_equal_machines_without_chance_give_what_they_sample() -> None:
    found = forecast([SamplingMachine(group_s=40.0)] * 4, DEMAND)
    assert found.utilization == pytest.approx(0.5, abs=0.02)
    assert found.low == found.high == pytest.approx(found.utilization)
    assert found.interval_s == pytest.approx(20.0 / found.utilization)
    assert found.lost_share == 0.0


def test_a_surplus_keeps_the_learner_at_work() -> None:
    found = forecast([SamplingMachine(group_s=40.0, spread=0.5)] * 16, DEMAND, updates=50)
    assert (found.low, found.high) == (1.0, 1.0)
    assert 1 < found.staleness_mean <= found.staleness_p95 <= 64


def test_a_fleet_that_samples_nothing_never_updates() -> None:
    found = forecast([], DEMAND)
    assert (found.utilization, found.interval_s, found.staleness_mean) == (0.0, math.inf, 0.0)


def test_the_interval_holds_eight_of_ten_unseen_runs() -> None:
    """Machines that come and go every half hour, so that runs differ."""
    machines = [
        SamplingMachine(group_s=100.0, spread=0.5, share_of_time=0.5, session_s=1800.0, version_delay_s=30.0)
    ] * 24
    found = forecast(machines, DEMAND, updates=40)
    runs = [utilization_of(simulate_run(machines, DEMAND, updates=40, seed=f"unseen {n}"), DEMAND) for n in range(40)]
    assert 0.6 <= sum(found.low <= run <= found.high for run in runs) / len(runs) <= 0.97
    assert found.high - found.low < 0.4


def test_a_learner_that_never_waits_for_slow_machines_is_at_work_longer() -> None:
    machines = [SamplingMachine(group_s=200.0, spread=0.3, slots=8)] * 80
    demand = replace(DEMAND, staleness_bound=16)
    waits, hurries = (forecast(machines, demand, updates=40, pace_limit=limit) for limit in (0.25, 0.0))
    assert hurries.utilization > waits.utilization + 0.05
    assert hurries.staleness_mean > waits.staleness_mean


def test_an_interval_of_few_runs_holds_eight_of_ten_further_ones() -> None:
    """By ranks: between the .1 and .9 places of n draws lie (.8 n + .8) / (n + 1) = .8 of all further ones."""
    rng, held = random.Random(3), 0
    for _ in range(2000):
        draws = sorted(rng.gauss(0.0, 1.0) for _ in range(12))
        held += _quantile(draws, 0.1) <= rng.gauss(0.0, 1.0) <= _quantile(draws, 0.9)
    assert 0.77 <= held / 2000 <= 0.83
    assert _quantile([1.0, 2.0], 0.1) == 1.0
    assert _quantile([1.0, 2.0], 0.9) == 2.0


def test_the_same_seed_gives_the_same_forecast_and_progress_ends_at_one() -> None:
    machines, told = [SamplingMachine(group_s=60.0, spread=0.5)] * 4, list[float]()
    first = forecast(machines, DEMAND, updates=20, seed=3, on_progress=told.append)
    assert first == forecast(machines, DEMAND, updates=20, seed=3)
    assert first != forecast(machines, DEMAND, updates=20, seed=4)
    assert told == sorted(told)
    assert told[-1] == 1.0


@pytest.mark.parametrize(
    ("bottleneck", "run", "row", "learner"),
    [
        ("memory", {"model": "7b"}, {}, {}),
        ("volunteers", {"model": "3b"}, {"count": 4}, {}),
        ("publishing", {"model": "3b"}, {}, {}),
        ("training", {"model": "3b"}, {"count": 60}, {}),
        ("replay", {"model": "3b"}, {"count": 60}, {"replay_s": 4.0}),
        ("links", {"model": "3b", "staleness": 8, "publish_every": 4}, {"count": 20, "upload_mbit": 0.1}, SLOW_LINK),
        ("staleness", {"model": "3b", "staleness": 2}, ONE_AT_A_TIME, {}),
    ],
)  # fmt: skip
def test_the_bottleneck_is_told(
    bottleneck: str, run: dict[str, object], row: dict[str, object], learner: dict[str, object]
) -> None:
    fleet = Fleet(
        learner=replace(FLEET.learner, **learner),  # type: ignore[arg-type]
        machines=(replace(HOME, **row),),  # type: ignore[arg-type]
        run=replace(FLEET.run, **run),  # type: ignore[arg-type]
    )
    found = advice_on(fleet)
    assert found.bottleneck == bottleneck, found.sentence
    assert bool(found.changes) == (bottleneck not in ("memory", "training", "replay"))


def test_advised_changes_do_what_is_said_of_them() -> None:
    fleet = replace(FLEET, run=replace(FLEET.run, model="3b"))
    changes = {change.setting: change for change in advice_on(fleet).changes}
    now = capacity_of_fleet(fleet, HERE).capacity.utilization
    assert set(changes) >= {"publish_every", "count"}
    every = int(changes["publish_every"].text.split()[3])
    more = int(changes["count"].text.split()[0])

    def with_interval(publish_every: int) -> float:
        changed = replace(fleet, run=replace(fleet.run, publish_every=publish_every))
        return capacity_of_fleet(changed, HERE).capacity.utilization

    def with_count(count: int) -> float:
        return capacity_of_fleet(replace(fleet, machines=(replace(HOME, count=count),)), HERE).capacity.utilization

    assert with_interval(every) == changes["publish_every"].utilization > 0.99 > with_interval(every - 1) > now
    assert with_count(12 + more) == changes["count"].utilization > 0.99 > with_count(12 + more - 1) > now


def test_as_few_machines_are_advised_as_suffice() -> None:
    def at_work(count: int) -> Fleet:
        return replace(FLEET, run=replace(FLEET.run, model="3b"), machines=(replace(HOME, count=count),))

    enough = next(
        count for count in range(1, 100) if capacity_of_fleet(at_work(count), HERE).capacity.utilization >= 0.995
    )
    assert enough > 3
    for missing in (1, 2, 3):
        changes = {change.setting: change for change in advice_on(at_work(enough - missing)).changes}
        assert changes["count"].text.startswith(f"{missing} more like home")
