"""What came of spreading a blob: when everybody had it, what the learner sent, what was sent for nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from p2prl.bench.spread.home_links import Population

Tell = Callable[[float], None]
"""Told now and then what share of the surviving peers is done."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Raw figures of one scheme."""

    finished_at: dict[int, float]
    """Peer → seconds after the start at which it had everything."""
    source_bytes: float
    """What the learner sent."""
    sent_bytes: float
    """What everybody sent."""
    arrived_bytes: float
    useful_bytes: float
    """Of what arrived, what its receiver lacked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SpreadRow:
    """One scheme in one swarm, as it is printed."""

    scheme: str
    n: int
    churn: float
    t50: float
    """Seconds until half of the surviving peers were done; infinite when they never were."""
    t95: float
    t100: float
    lower_bound: float
    """Seconds nobody can beat for the last survivor."""
    lower_bound_95: float
    """The same for 95 % of the survivors."""
    source_copies: float
    waste_share: float
    """Bytes that arrived where they were not lacking, over all that arrived."""
    survivors_finished: float
    """Share of the surviving peers."""

    @property
    def t95_over(self) -> float:
        """t95 over its bound."""
        return self.t95 / self.lower_bound_95

    @property
    def t100_over(self) -> float:
        """t100 over its bound."""
        return self.t100 / self.lower_bound


def row_of(scheme: str, population: Population, churn: float, outcome: Outcome) -> SpreadRow:
    """The row that belongs to an outcome."""
    survivors = population.survivors
    times = sorted(outcome.finished_at.get(peer, math.inf) for peer in survivors)

    def quantile(share: float) -> float:
        return times[max(0, math.ceil(share * len(times)) - 1)]

    arrived = max(outcome.arrived_bytes, 1.0)
    return SpreadRow(
        scheme=scheme,
        n=len(population.peers),
        churn=churn,
        t50=quantile(0.5),
        t95=quantile(0.95),
        t100=quantile(1.0),
        lower_bound=population.lower_bound_s(),
        lower_bound_95=population.lower_bound_s(0.95),
        source_copies=outcome.source_bytes / population.size_bytes,
        waste_share=max(0.0, outcome.arrived_bytes - outcome.useful_bytes) / arrived,
        survivors_finished=sum(math.isfinite(time) for time in times) / len(survivors),
    )
