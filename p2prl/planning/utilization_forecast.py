"""Forecast of a fleet: the learner's utilization with an interval, the staleness, and how much is lost to age.

The closed form (`p2prl.learner.timing.capacity`) explains and searches; a few dozen simulated runs give the interval,
since a small fleet whose machines come and go is a draw.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from p2prl.learner.timing.capacity import Demand, SamplingMachine
from p2prl.planning.queue_simulation import PACE_LIMIT, QueueConfig, QueueResult, simulate_queue, staleness_quantile

_MOST_WAIT = 20.0
"""A simulated run ends when it has taken this many times as long as its updates."""

_GROUPS = 24_000
"""Groups that all simulated runs of a forecast train on: some seconds."""

_LEAST_RUNS, _MOST_RUNS = 8, 20

_LOW, _HIGH = 0.1, 0.9
"""Quantiles of the simulated runs at which the interval ends: eight of ten lie within."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """What simulated runs of a fleet came to."""

    runs: int
    updates: int
    """Of each, at most."""
    utilization: float
    """Mean share of the time in which the learner is at work, after the first quarter of a run."""
    low: float
    high: float
    """Eight of ten runs lie between these."""
    interval_s: float
    """Seconds between updates, in the mean; infinite if there were none."""
    staleness_mean: float
    staleness_p95: float
    lost_share: float
    """Share of the groups that reached the learner and grew too stale."""


def forecast(
    machines: Sequence[SamplingMachine],
    demand: Demand,
    *,
    updates: int = 100,
    pace_limit: float = PACE_LIMIT,
    seed: int = 0,
    on_progress: Callable[[float], None] = lambda _: None,
) -> Forecast:
    """Simulate runs of `updates` updates. The same seed gives the same forecast.

    `pace_limit` is the learner's: the longest wait for slow machines, as a share of an update's time.
    """
    runs = min(_MOST_RUNS, max(_LEAST_RUNS, _GROUPS // (updates * demand.groups_per_update)))
    results = []
    for number in range(runs):
        name = f"forecast/{seed}/{number}"
        results.append(simulate_run(machines, demand, updates=updates, pace_limit=pace_limit, seed=name))
        on_progress((number + 1) / runs)
    found = sorted(utilization_of(result, demand) for result in results)
    ages = sorted(age for result in results for age in result.staleness(after=len(result.batches) // 4))
    lost = sum(len(result.lost) for result in results)
    trained = sum(len(batch) for result in results for batch in result.batches)
    return Forecast(
        runs=runs,
        updates=updates,
        utilization=fmean(found),
        low=_quantile(found, _LOW),
        high=_quantile(found, _HIGH),
        interval_s=demand.update_s / fmean(found) if any(found) else math.inf,
        staleness_mean=fmean(ages) if ages else 0.0,
        staleness_p95=staleness_quantile(ages, 0.95),
        lost_share=lost / (lost + trained) if lost else 0.0,
    )


def simulate_run(
    machines: Sequence[SamplingMachine], demand: Demand, *, updates: int, pace_limit: float = PACE_LIMIT, seed: str
) -> QueueResult:
    """One run with the learner's own order and pace, with lognormal times of the groups."""
    rng = random.Random(seed)  # noqa: S311 - simulated, not secret

    def factor(machine: int, _: int) -> float:
        spread = machines[machine].spread
        return math.exp(rng.gauss(0.0, spread) - spread**2 / 2)

    most_s = _MOST_WAIT * updates * demand.update_s
    return simulate_queue(
        QueueConfig(machines=tuple(machines), demand=demand, updates=updates, pace_limit=pace_limit, most_s=most_s),
        factor,
        rng,
    )


def utilization_of(result: QueueResult, demand: Demand) -> float:
    """Share of the time in which the learner was at work, from the end of the first quarter of its updates on."""
    began_s = result.began_s
    first = len(began_s) // 4
    intervals = len(began_s) - 1 - first
    return intervals * demand.update_s / (began_s[-1] - began_s[first]) if intervals > 0 else 0.0


def _quantile(values: Sequence[float], share: float) -> float:
    """What a further draw exceeds with probability 1 − `share`, by some draws, ascending.

    One of n + 1 draws is equally likely to have any rank (Weibull, 1939), so that the place is share · (n + 1).
    Quantiles of the n themselves hold too few further draws: 72 % instead of 80 % with twenty.
    """
    place = min(max(share * (len(values) + 1) - 1, 0.0), len(values) - 1.0)
    below = int(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (place - below) * (values[above] - values[below])
