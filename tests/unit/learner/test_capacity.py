"""Capacity: the pace that machines allow a learner, against cases worked out by hand and its own fixed point."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.learner.timing.capacity import Demand, SamplingMachine, broadcast_s, capacity_of, useful_rate

DEMAND = Demand(groups_per_update=16, update_s=20.0, staleness_bound=64, publish_every=2)
machines = st.lists(
    st.builds(
        SamplingMachine,
        group_s=st.floats(1.0, 5000.0),
        slots=st.integers(1, 8),
        spread=st.sampled_from([0.0, 0.3, 1.0]),
        share_of_time=st.floats(0.1, 1.0),
        session_s=st.floats(100.0, 1e6),
        acceptance=st.floats(0.1, 1.0),
        version_delay_s=st.floats(0.0, 500.0),
    ),
    max_size=4,
)
demands = st.builds(
    Demand,
    groups_per_update=st.integers(1, 64),
    update_s=st.floats(1.0, 100.0),
    staleness_bound=st.integers(1, 128),
    publish_every=st.integers(1, 8),
)


@pytest.mark.parametrize(("count", "utilization"), [(4, 0.5), (8, 1.0), (7, 0.875), (16, 1.0), (0, 0.0)])
def test_fresh_equal_machines_are_counted(count: int, utilization: float) -> None:
    """Each brings 4 groups in 40 s, and 16 in 20 s are wanted: eight are needed."""
    found = capacity_of([SamplingMachine(group_s=40.0)] * count, DEMAND)
    assert found.utilization == pytest.approx(utilization, abs=1e-6)
    assert found.saturated == (count >= 8)
    assert found.sampled_per_s == found.useful_per_s == pytest.approx(count * 0.1)
    assert found.interval_s == (pytest.approx(20.0 / utilization) if utilization else math.inf)


def test_share_of_time_and_acceptance_scale_what_a_machine_brings() -> None:
    whole = SamplingMachine(group_s=40.0)
    part = replace(whole, share_of_time=0.5, session_s=1e9, acceptance=0.8)
    assert capacity_of([part] * 10, DEMAND).sampled_per_s == pytest.approx(0.4 * 10 * 0.1)
    assert capacity_of([part] * 10, DEMAND).utilization == pytest.approx(0.5, abs=1e-4)


@pytest.mark.parametrize("bound", [3, 8, 20])
def test_a_learner_that_waits_makes_slow_work_fresh_enough(bound: int) -> None:
    """Groups take 200 s, and 1,000 machines bring 5 a second. In time are those begun U < S − ½ − 200 / P updates after
    a version, so that 5 P (S − ½ − 200 / P) = 16."""
    demand = replace(DEMAND, staleness_bound=bound, publish_every=1)
    found = capacity_of([SamplingMachine(group_s=200.0, slots=1)] * 1000, demand)
    assert found.sampled_per_s == 5.0
    assert found.interval_s == pytest.approx(max(20.0, 203.2 / (bound - 0.5)), rel=0.01)
    assert found.useful_per_s == (5.0 if bound == 20 else 0.0)


@given(machines, demands)
def test_the_interval_is_the_smallest_that_brings_an_update(found: list[SamplingMachine], demand: Demand) -> None:
    capacity = capacity_of(found, demand)
    assert capacity.utilization == (demand.update_s / capacity.interval_s)
    if math.isinf(capacity.interval_s):
        return
    assert capacity.interval_s >= demand.update_s
    just_more, just_less = capacity.interval_s * 1.0001, capacity.interval_s * 0.9999
    assert useful_rate(found, demand, just_more) * just_more >= demand.groups_per_update
    if not capacity.saturated:
        assert useful_rate(found, demand, just_less) * just_less < demand.groups_per_update


@given(machines.filter(bool), demands, st.data())
def test_better_machines_and_looser_bounds_never_slow_the_learner(
    found: list[SamplingMachine], demand: Demand, data: st.DataObject
) -> None:
    before = capacity_of(found, demand).utilization
    better = data.draw(
        st.sampled_from(
            [
                ([*found, found[0]], demand),
                ([replace(each, version_delay_s=0.0) for each in found], demand),
                ([replace(each, acceptance=1.0) for each in found], demand),
                ([replace(each, session_s=math.inf) for each in found], demand),
                ([replace(each, drains=False) for each in found], demand),
                (found, replace(demand, staleness_bound=demand.staleness_bound + 8)),
            ]
        )
    )
    assert capacity_of(*better).utilization >= before - 1e-9


def test_late_versions_cost_groups_that_are_nearly_too_stale() -> None:
    machine = SamplingMachine(group_s=500.0, slots=8, spread=0.5, drains=False)
    demand = replace(DEMAND, staleness_bound=32)
    shares = [
        capacity_of([replace(machine, version_delay_s=delay)], demand).useful_per_s / machine.groups_per_s
        for delay in (0.0, 200.0, 400.0, 700.0)
    ]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.6
    assert shares[-1] == 0.0


def test_groups_begun_by_a_machine_that_leaves_are_lost() -> None:
    """Against sessions drawn at random, in which a machine samples one group of 600 s after the other."""
    rng = random.Random(3)
    sessions = [rng.expovariate(1 / 1000.0) for _ in range(40_000)]
    oracle = sum(session // 600.0 for session in sessions) / sum(sessions)
    machine = SamplingMachine(group_s=600.0, slots=1, session_s=1000.0)
    assert useful_rate([machine], replace(DEMAND, staleness_bound=1000), 20.0) == pytest.approx(oracle, rel=0.02)


def test_a_broadcast_is_as_slow_as_its_narrowest_link() -> None:
    p = 100e6
    assert broadcast_s(p, learner_bytes_s=1e6, down_bytes_s=1e9, up_bytes_s=[1e9]) == pytest.approx(106.0)
    assert broadcast_s(p, learner_bytes_s=1e9, down_bytes_s=2e6, up_bytes_s=[1e9]) == pytest.approx(53.0)
    # Nobody passes anything on, so the learner sends ten copies.
    assert broadcast_s(p, learner_bytes_s=1e7, down_bytes_s=1e9, up_bytes_s=[0.0] * 10) == pytest.approx(106.0)
    assert broadcast_s(p, learner_bytes_s=1e7, down_bytes_s=1e9, up_bytes_s=[9e6] * 10) == pytest.approx(10.6)
