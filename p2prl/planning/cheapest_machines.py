"""The cheapest machines of a fleet that keep its learner at work.

Machines are taken by cost for each useful group, cheapest first, until

    Σ useful − z √Σ variance ≥ (1 + margin) R / T

where a machine that is there a share a of the time brings u / a or nothing, so its variance is u² (1 − a) / a. Then
those that the others make needless are dropped, dearest first. ECHO-2 (arXiv 2602.02192) activates by cost as well. An
integer program is hardly cheaper in the median (docs/planning.md). Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from p2prl.learner.timing.capacity import Demand, SamplingMachine, capacity_of, useful_rate
from p2prl.planning.fleet_capacity import FleetCapacity

_MARGIN = 0.05
"""Share of the need that is kept beyond it."""

_FEW = 10
"""Machines below which z is 2, not 1: one that leaves is a large part of them."""


def least_useful(machines: Sequence[SamplingMachine], useful: Sequence[float], demand: Demand) -> float:
    """Useful groups a second that these machines must bring together, so that those that leave are not missed."""
    variance = math.fsum(
        rate**2 * (1.0 - machine.share_of_time) / machine.share_of_time
        for machine, rate in zip(machines, useful, strict=True)
    )
    deviations = 1.0 if len(machines) >= _FEW else 2.0
    return (1.0 + _MARGIN) * demand.groups_per_s + deviations * math.sqrt(variance)


def cheapest_enough(machines: Sequence[SamplingMachine], costs: Sequence[float], demand: Demand) -> list[int]:
    """Places of the machines to use, ascending; all that bring anything when they are not enough.

    `costs` are the machines' costs an hour in one unit, each above 0.
    """
    useful = [useful_rate([machine], demand, demand.update_s) for machine in machines]
    order = sorted((place for place in range(len(machines)) if useful[place] > 0.0), key=lambda i: costs[i] / useful[i])

    def suffices(chosen: list[int]) -> bool:
        rates = [useful[place] for place in chosen]
        return math.fsum(rates) >= least_useful([machines[place] for place in chosen], rates, demand)

    chosen: list[int] = []
    for place in order:
        if suffices(chosen):
            break
        chosen.append(place)
    if suffices(chosen):
        for place in sorted(chosen, key=lambda i: (-costs[i], i)):
            without = [each for each in chosen if each != place]
            if suffices(without):
                chosen = without
    return sorted(chosen)


def best_within(machines: Sequence[SamplingMachine], costs: Sequence[float], demand: Demand, most: float) -> list[int]:
    """Places of machines that cost at most `most` together, ascending: the cheapest that are enough, or those with the
    most useful groups.

    They are taken cheapest first for each useful group, those that no longer fit are passed over, and the one machine
    that brings most is taken instead if it brings more than all of them: never less than half of what an integer
    program finds (Dantzig, 1957), and close to it where each costs little of the budget.
    """
    enough = cheapest_enough(machines, costs, demand)
    if math.fsum(costs[place] for place in enough) <= most:
        return enough
    useful = [useful_rate([machine], demand, demand.update_s) for machine in machines]
    places = [place for place in range(len(machines)) if useful[place] > 0.0 and costs[place] <= most]
    chosen: list[int] = []
    left = most
    for place in sorted(places, key=lambda i: costs[i] / useful[i]):
        if costs[place] <= left:
            chosen.append(place)
            left -= costs[place]
    best = max(places, key=lambda i: useful[i], default=None)
    if best is not None and useful[best] > math.fsum(useful[place] for place in chosen):
        return [best]
    return sorted(chosen)


@dataclass(frozen=True, kw_only=True, slots=True)
class Activation:
    """The cheapest part of a fleet that keeps its learner at work."""

    counts: tuple[int, ...]
    """Machines of each kind, in the fleet's order."""
    share_of_cost: float
    """What they cost, of the whole fleet's cost."""


def activation_of(found: FleetCapacity) -> Activation | None:
    """The cheapest part that is enough; None if the whole fleet is needed, or is not enough."""
    kinds, costs = _kinds(found), _costs(found)
    chosen = cheapest_enough(found.machines, costs, found.demand)
    if not found.capacity.saturated or len(chosen) == len(kinds):
        return None
    cost = math.fsum(costs[place] for place in chosen)
    return Activation(counts=_counts(found, chosen), share_of_cost=cost / math.fsum(costs))


@dataclass(frozen=True, kw_only=True, slots=True)
class Affordable:
    """The part of a fleet that a budget pays for."""

    budget: float
    counts: tuple[int, ...]
    """Machines of each kind, in the fleet's order."""
    cost: float
    """What an hour of them costs, at most the budget."""
    utilization: float
    """Of the learner with them alone, by the formula."""


def affordable(found: FleetCapacity, budget: float) -> Affordable:
    """Who to take for at most `budget` an hour: no more than are enough."""
    costs = _costs(found)
    chosen = best_within(found.machines, costs, found.demand, budget)
    return Affordable(
        budget=budget,
        counts=_counts(found, chosen),
        cost=math.fsum(costs[place] for place in chosen),
        utilization=capacity_of([found.machines[place] for place in chosen], found.demand).utilization,
    )


def _kinds(found: FleetCapacity) -> list[int]:
    """The row of each machine that can sample."""
    return [number for number, row in enumerate(found.rows) if row.machine is not None for _ in range(row.row.count)]


def _costs(found: FleetCapacity) -> list[float]:
    return [found.rows[kind].row.price for kind in _kinds(found)]


def _counts(found: FleetCapacity, chosen: Sequence[int]) -> tuple[int, ...]:
    kinds = _kinds(found)
    counts = [0] * len(found.rows)
    for place in chosen:
        counts[kinds[place]] += 1
    return tuple(counts)
