"""Cost and utilization of the cheapest machines that are enough, beside a whole fleet and an integer program."""

from __future__ import annotations

import ctypes
import math
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from p2prl.learner.timing.capacity import Demand, SamplingMachine, useful_rate
from p2prl.planning.cheapest_machines import cheapest_enough, least_useful
from p2prl.planning.utilization_forecast import simulate_run, utilization_of

_DEMAND = Demand(groups_per_update=16, update_s=20.0, staleness_bound=64, publish_every=2)
_SURPLUS = (1.5, 2.0, 3.0)
"""Useful groups of a fleet over what is needed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ActivationRow:
    """One drawn fleet, whose machines come and go."""

    fleet: str
    cost_of_all_active: float
    """Cost of the chosen machines, of the whole fleet's."""
    utilisation_of_all_active: float
    """Utilization with them over that with everybody, in simulated runs."""
    of_milp: float
    """Their cost over that of an integer program, for as many useful groups as they need to bring."""


def run_activation_bench(
    *, updates: int, seed: int, fleets: int, on_progress: Callable[[str, float], None] = lambda *_: None
) -> Iterator[ActivationRow]:
    """A row for each drawn fleet."""
    for number in range(fleets):
        on_progress("activation", number / fleets)
        yield _row(number, updates=updates, seed=seed)


def _row(number: int, *, updates: int, seed: int) -> ActivationRow:
    rng = random.Random(f"activation/{seed}/{number}")  # noqa: S311 - simulated
    surplus = _SURPLUS[number % len(_SURPLUS)]
    machines, costs = _drawn(rng, surplus)
    chosen = cheapest_enough(machines, costs, _DEMAND)
    useful = [useful_rate([machine], _DEMAND, _DEMAND.update_s) for machine in machines]
    needed = least_useful([machines[place] for place in chosen], [useful[place] for place in chosen], _DEMAND)
    with _library_lines_on_stderr():
        best = milp(
            np.array(costs),
            constraints=LinearConstraint(np.array([useful]), lb=min(needed, math.fsum(useful))),
            integrality=np.ones(len(costs)),
            bounds=Bounds(0, 1),
        )
    cost = math.fsum(costs[place] for place in chosen)
    some, everybody = (
        utilization_of(simulate_run(each, _DEMAND, updates=updates, seed=f"{seed}/{number}"), _DEMAND)
        for each in ([machines[place] for place in chosen], machines)
    )
    return ActivationRow(
        fleet=f"{len(machines)} machines, {surplus:g} times the need",
        cost_of_all_active=cost / math.fsum(costs),
        utilisation_of_all_active=some / everybody,
        of_milp=cost / best.fun,
    )


@contextmanager
def _library_lines_on_stderr() -> Iterator[None]:
    """Keep HiGHS's notes off standard output, which is for one JSON document. C's own buffer is written out before the
    descriptor is put back."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)
        os.close(kept)


def _drawn(rng: random.Random, surplus: float) -> tuple[list[SamplingMachine], list[float]]:
    """Machines of unlike speeds, prices, links and presence."""
    machines = [
        SamplingMachine(
            group_s=40.0 * rng.lognormvariate(0.0, 0.6),
            slots=rng.randint(1, 6),
            spread=0.3,
            share_of_time=rng.uniform(0.4, 1.0),
            session_s=rng.uniform(600.0, 7200.0),
            version_delay_s=rng.lognormvariate(2.0, 1.0),
        )
        for _ in range(rng.randint(8, 40))
    ]
    costs = [rng.lognormvariate(0.0, 0.7) for _ in machines]
    scale = useful_rate(machines, _DEMAND, _DEMAND.update_s) / (surplus * _DEMAND.groups_per_s)
    return [replace(each, group_s=each.group_s * scale) for each in machines], costs


def as_markdown(rows: list[ActivationRow]) -> str:
    """Rows as a Markdown table."""
    lines = ["| fleet | cost, of all | utilization, of all | cost, of an integer program |", "|---|---:|---:|---:|"]
    lines += [
        f"| {row.fleet} | {row.cost_of_all_active:.2f} | {row.utilisation_of_all_active:.3f} | {row.of_milp:.2f} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"
