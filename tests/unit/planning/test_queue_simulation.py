"""Simulated queue: its counts by hand, its machines' rules, and the formula held against it on drawn fleets."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from p2prl.errors import ConfigError
from p2prl.learner.timing.capacity import Demand, SamplingMachine, capacity_of
from p2prl.planning.queue_simulation import QueueConfig, QueueResult, simulate_queue

DEMAND = Demand(groups_per_update=4, update_s=10.0, staleness_bound=16, publish_every=2)


def simulate(
    machines: list[SamplingMachine], demand: Demand = DEMAND, *, seed: int = 0, **settings: float
) -> QueueResult:
    rng = random.Random(seed)

    def lognormal(machine: int, _: int) -> float:
        spread = machines[machine].spread
        return math.exp(rng.gauss(0.0, spread) - spread**2 / 2)

    config = QueueConfig(machines=tuple(machines), demand=demand, order="soonest", **settings)  # type: ignore[arg-type]
    return simulate_queue(config, lognormal, rng)


def utilization(result: QueueResult, demand: Demand) -> float:
    first = len(result.batches) // 4
    return (len(result.batches) - 1 - first) * demand.update_s / (result.began_s[-1] - result.began_s[first])


def test_one_machine_without_chance_is_worked_out_by_hand() -> None:
    """Four groups are ready every 40 s; versions 2, 4, … are out at 60, 140, …, in the midst of a machine's work."""
    result = simulate([SamplingMachine(group_s=40.0, slots=4)], updates=5)
    assert result.began_s == [40.0, 80.0, 120.0, 160.0, 200.0]
    assert [[group.version_step for group in batch] for batch in result.batches] == [[0] * 4] * 2 + [[0] * 4] + [
        [2] * 4
    ] * 2
    assert result.seconds == 210.0
    assert result.staleness() == sorted([0, 1, 2, 1, 2] * 4)
    assert result.staleness(after=3) == sorted([1, 2] * 4)


def test_a_version_is_used_only_once_it_has_arrived() -> None:
    machine = SamplingMachine(group_s=40.0, slots=4)
    near, far = (simulate([replace(machine, version_delay_s=delay)], updates=20) for delay in (0.0, 70.0))
    assert near.began_s == far.began_s
    assert sum(far.staleness()) > sum(near.staleness())


def test_a_machine_drains_its_slots_before_it_takes_a_version() -> None:
    machine = SamplingMachine(group_s=30.0, slots=4, spread=0.8)
    fleet = [machine] * 2
    drained, mixed = (simulate([replace(each, drains=how) for each in fleet], updates=200) for how in (True, False))
    assert drained.seconds > 1.3 * mixed.seconds


def test_a_machine_samples_nothing_while_it_switches_to_a_version() -> None:
    """One group at a time in ten seconds and an update a group, each with a version that takes five to switch to."""
    demand = Demand(groups_per_update=1, update_s=1.0, staleness_bound=16, publish_every=1)
    machine = SamplingMachine(group_s=10.0, slots=1)
    quick, slow = (simulate([replace(machine, switch_s=seconds)], demand, updates=20) for seconds in (0.0, 5.0))
    assert quick.began_s == [10.0 * number for number in range(1, 21)]
    assert slow.began_s[:4] == [10.0, 20.0, 35.0, 50.0], "version 1 is out at 11, amid the second group"
    assert capacity_of([replace(machine, switch_s=5.0)], demand).interval_s == pytest.approx(15.0)


def test_groups_that_end_together_take_one_time_and_wait_for_none() -> None:
    machine = SamplingMachine(group_s=30.0, slots=4, spread=0.8)
    apart, together = (simulate([replace(machine, together=how)], updates=300) for how in (False, True))
    assert all(len({group.seconds for group in batch}) == 1 for batch in together.batches)
    assert any(len({group.seconds for group in batch}) > 1 for batch in apart.batches)
    assert together.seconds == pytest.approx(300 * 30.0, rel=0.15)
    assert capacity_of([replace(machine, together=True)], DEMAND).interval_s == pytest.approx(30.0, rel=0.01)
    assert apart.seconds > 1.3 * together.seconds, "they wait for the longest before each version"


def test_slow_replays_hold_training_up() -> None:
    fleet = [SamplingMachine(group_s=10.0, slots=1)] * 8
    demand = replace(DEMAND, replay_per_s=0.2)
    assert simulate(fleet, DEMAND, updates=100).seconds == pytest.approx(1010.0, rel=0.02)
    slow = simulate(fleet, demand, updates=100)
    assert slow.seconds == pytest.approx(100 * 4 / 0.2, rel=0.03)
    assert max(slow.staleness()) <= demand.staleness_bound
    assert capacity_of(fleet, demand).utilization == pytest.approx(0.5)


def test_groups_older_than_the_bound_are_lost_and_never_trained_on() -> None:
    slow, fast = SamplingMachine(group_s=300.0, slots=1), SamplingMachine(group_s=10.0, slots=4)
    result = simulate([slow, fast], updates=200)
    assert {group.machine for group in result.lost} == {0}
    assert max(result.staleness()) <= 16
    assert all(group.machine == 1 for batch in result.batches for group in batch)


def test_groups_that_fail_their_check_leave_the_queue() -> None:
    whole = SamplingMachine(group_s=40.0)
    half = simulate([replace(whole, acceptance=0.5)] * 2, updates=200)
    assert half.seconds == pytest.approx(simulate([whole], updates=200).seconds, rel=0.1)


def test_a_fleet_that_brings_nothing_ends_at_the_time_limit() -> None:
    result = simulate([SamplingMachine(group_s=1e6)], updates=10, most_s=5000.0)
    assert (result.batches, result.seconds) == ([], 5000.0)
    assert simulate([], updates=1, most_s=7.0).seconds == 7.0


def test_a_share_of_the_time_needs_sessions() -> None:
    with pytest.raises(ConfigError, match="session_s"):
        QueueConfig(machines=(SamplingMachine(group_s=1.0, share_of_time=0.5),), demand=DEMAND)


def drawn_fleet(rng: random.Random) -> tuple[list[SamplingMachine], Demand]:
    """8 to 24 machines that could bring .3 to 1.3 of the need, some of the time, at a delay."""
    demand = Demand(
        groups_per_update=16,
        update_s=20.0,
        staleness_bound=rng.choice([8, 16, 64]),
        publish_every=rng.choice([1, 2, 4]),
    )
    weights = [math.exp(rng.gauss(0.0, 0.7)) for _ in range(rng.choice([8, 16, 24]))]
    scale = demand.groups_per_s * rng.uniform(0.3, 1.3) / sum(weights)
    fleet = []
    for weight in weights:
        share = rng.choice([1.0, 0.7])
        fleet.append(
            SamplingMachine(
                group_s=4 * share / (weight * scale),
                spread=0.5,
                share_of_time=share,
                session_s=400.0,
                version_delay_s=rng.uniform(5.0, 60.0),
            )
        )
    return fleet, demand


def test_the_formula_is_close_to_the_simulation_on_drawn_fleets() -> None:
    """Most do not keep their learners at work; machines come and go 50 times in the mean."""
    rng, errors, unsaturated, periods = random.Random("capacity"), [], 0, 0.0
    for _ in range(24):
        fleet, demand = drawn_fleet(rng)
        found = capacity_of(fleet, demand)
        unsaturated += not found.saturated
        run_s = 200 * found.interval_s
        periods += sum(run_s * each.share_of_time / each.session_s for each in fleet if each.share_of_time < 1.0) / 24
        realized = [utilization(simulate(fleet, demand, seed=seed, updates=200), demand) for seed in range(2)]
        errors.append(abs(found.utilization - sum(realized) / 2))
    assert unsaturated >= 12
    assert periods >= 50
    assert sum(error <= 0.1 for error in errors) >= 0.85 * len(errors)
    assert sum(errors) / len(errors) < 0.05
