"""The cheapest machines that are enough, against an integer program and against simulated runs."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import median

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from p2prl.learner.timing.capacity import Demand, SamplingMachine, useful_rate
from p2prl.planning.cheapest_machines import best_within, cheapest_enough
from p2prl.planning.utilization_forecast import simulate_run, utilization_of

DEMAND = Demand(groups_per_update=16, update_s=20.0, staleness_bound=64, publish_every=2)


def drawn(seed: int, *, surplus: float, share_of_time: bool = False) -> tuple[list[SamplingMachine], list[float]]:
    """Machines of unlike speeds and prices that bring `surplus` times what the learner can use."""
    rng = random.Random(f"activation/{seed}")
    machines = [
        SamplingMachine(
            group_s=30.0 * rng.lognormvariate(0.0, 0.6),
            slots=rng.randint(1, 6),
            spread=0.3,
            share_of_time=rng.uniform(0.4, 1.0) if share_of_time else 1.0,
            session_s=3600.0 if share_of_time else float("inf"),
        )
        for _ in range(rng.randint(8, 40))
    ]
    costs = [rng.lognormvariate(0.0, 0.7) for _ in machines]
    scale = useful_rate(machines, DEMAND, DEMAND.update_s) / (surplus * DEMAND.groups_per_s)
    return [replace(each, group_s=each.group_s * scale) for each in machines], costs


def useful_of(machines: list[SamplingMachine]) -> list[float]:
    return [useful_rate([machine], DEMAND, DEMAND.update_s) for machine in machines]


def test_it_is_hardly_dearer_than_an_integer_program() -> None:
    ratios = []
    for seed in range(40):
        machines, costs = drawn(seed, surplus=2.0)
        chosen = cheapest_enough(machines, costs, DEMAND)
        useful = useful_of(machines)
        need = min(1.05 * DEMAND.groups_per_s, sum(useful))
        assert sum(useful[place] for place in chosen) >= need
        best = milp(
            np.array(costs),
            constraints=LinearConstraint(np.array([useful]), lb=need),
            integrality=np.ones(len(costs)),
            bounds=Bounds(0, 1),
        )
        ratios.append(sum(costs[place] for place in chosen) / best.fun)
    assert min(ratios) >= 1.0 - 1e-6, "the oracle is one"
    assert median(ratios) <= 1.05
    assert max(ratios) <= 1.35


def test_none_of_them_is_needless() -> None:
    for seed in range(20):
        machines, costs = drawn(seed, surplus=2.5)
        chosen = cheapest_enough(machines, costs, DEMAND)
        useful = useful_of(machines)
        brought = sum(useful[place] for place in chosen)
        assert all(brought - useful[place] < 1.05 * DEMAND.groups_per_s for place in chosen)


def test_they_keep_the_learner_at_work_for_less_than_all_cost() -> None:
    ratios, shares = [], []
    for seed in range(6):
        machines, costs = drawn(seed + 100, surplus=2.0, share_of_time=True)
        chosen = cheapest_enough(machines, costs, DEMAND)
        ratios.append(sum(costs[place] for place in chosen) / sum(costs))
        some, everybody = (
            utilization_of(simulate_run(each, DEMAND, updates=60, seed=f"{seed}"), DEMAND)
            for each in ([machines[place] for place in chosen], machines)
        )
        shares.append(some / everybody)
    assert median(ratios) <= 0.65
    assert median(shares) >= 0.97


def test_what_is_not_enough_is_used_whole_but_for_what_brings_nothing() -> None:
    machines, costs = drawn(1, surplus=0.6)
    useless = SamplingMachine(group_s=1e9)
    assert cheapest_enough([useless, *machines], [0.001, *costs], DEMAND) == list(range(1, len(machines) + 1))


def test_machines_that_come_and_go_need_more_of_them() -> None:
    steady = [SamplingMachine(group_s=25.0, slots=1)] * 60
    fickle = [replace(each, group_s=20.0, share_of_time=0.8) for each in steady]
    counts = [len(cheapest_enough(each, [1.0] * 60, DEMAND)) for each in (steady, fickle)]
    assert useful_of(steady)[0] == useful_of(fickle)[0]
    assert counts[0] < counts[1]


def test_a_budget_takes_nearly_what_an_integer_program_takes() -> None:
    shares = []
    for seed in range(40):
        machines, costs = drawn(seed, surplus=0.9)
        useful = useful_of(machines)
        most = random.Random(seed).uniform(0.1, 0.8) * sum(costs)
        chosen = best_within(machines, costs, DEMAND, most)
        assert chosen == sorted(set(chosen))
        assert sum(costs[place] for place in chosen) <= most
        best = milp(
            -np.array(useful),
            constraints=LinearConstraint(np.array([costs]), ub=most),
            integrality=np.ones(len(costs)),
            bounds=Bounds(0, 1),
        )
        shares.append(sum(useful[place] for place in chosen) / -best.fun)
    assert max(shares) <= 1.0 + 1e-6, "the oracle is one"
    assert median(shares) >= 0.97
    assert min(shares) >= 0.5


def test_a_budget_is_not_spent_beyond_what_is_enough() -> None:
    machines, costs = drawn(3, surplus=2.0)
    enough = cheapest_enough(machines, costs, DEMAND)
    price = sum(costs[place] for place in enough)
    assert best_within(machines, costs, DEMAND, 2 * price) == enough
    assert best_within(machines, costs, DEMAND, price + 1e-9) == enough
    assert sum(costs[place] for place in best_within(machines, costs, DEMAND, 0.9 * price)) <= 0.9 * price
    assert best_within(machines, costs, DEMAND, 0.0) == []


def test_one_large_machine_is_taken_where_small_ones_bring_less() -> None:
    small, large = SamplingMachine(group_s=1000.0, slots=1), SamplingMachine(group_s=50.0, slots=1)
    assert best_within([small, large], [0.04, 1.0], DEMAND, 1.0) == [1]
