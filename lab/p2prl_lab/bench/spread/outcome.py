"""Outcome of spreading a blob: finishing times, bytes sent by the learner, wasted bytes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from p2prl_lab.bench.spread.home_links import Population

Tell = Callable[[float], None]
"""Progress callback; receives the share of surviving peers that have finished."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Raw figures of one scheme."""

    finished_at: dict[int, float]
    """Peer → seconds after the start at which it had every chunk."""
    source_bytes: float
    """Bytes sent by the learner."""
    sent_bytes: float
    """Bytes sent by all peers."""
    arrived_bytes: float
    useful_bytes: float
    """Bytes received that the receiver did not have yet."""
    control_bytes: float = 0.0
    """Bytes of control messages sent by all peers; 0 for schemes that are not charged for theirs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SpreadRow:
    """One scheme in one swarm. Many fields, because each is a column of the table."""

    links: str
    """Name of the set of links, or the file."""
    scheme: str
    n: int
    churn: float
    t50: float
    """Seconds until half of the surviving peers had finished; infinite if they never did."""
    t95: float
    t100: float
    lower_bound: float
    """Lower bound on t100, seconds."""
    lower_bound_95: float
    """Lower bound on t95, seconds."""
    source_copies: float
    waste_share: float
    """Duplicate bytes received, divided by all bytes received."""
    survivors_finished: float
    """Share of the surviving peers that finished."""
    star_over_bound: float
    """The least time of a star, over the same bound."""
    control_share: float
    """Control bytes, divided by all bytes sent."""
    cpu_s: float = field(default=0.0, compare=False)
    """CPU seconds of the simulation, all peers together."""

    @property
    def t95_over(self) -> float:
        """t95 over its bound."""
        return self.t95 / self.lower_bound_95

    @property
    def t100_over(self) -> float:
        """t100 over its bound."""
        return self.t100 / self.lower_bound


def row_of(
    scheme: str, population: Population, churn: float, outcome: Outcome, *, links: str = "home", cpu_s: float = 0.0
) -> SpreadRow:
    """The row of an outcome."""
    survivors = population.survivors
    times = sorted(outcome.finished_at.get(peer, math.inf) for peer in survivors)

    def quantile(share: float) -> float:
        return times[max(0, math.ceil(share * len(times)) - 1)]

    arrived = max(outcome.arrived_bytes, 1.0)
    return SpreadRow(
        links=links,
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
        star_over_bound=population.star_s() / population.lower_bound_s(),
        control_share=outcome.control_bytes / max(outcome.control_bytes + outcome.sent_bytes, 1.0),
        cpu_s=cpu_s,
    )
