"""Simulated swarms: their settings, their results and their faults."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from p2prl.protocol.identity import PeerId
from p2prl.sim.costs import Costs
from p2prl.sim.virtual_network import VirtualNetwork
from p2prl.sim.virtual_time import START

_OUTAGE_S = 60.0
"""Time a crashed volunteer stays down."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SwarmConfig:
    """A simulated swarm. Many fields, because most of them are options of `p2prl sim`."""

    volunteers: int = 8
    updates: int = 60
    delay: str = "const:0"
    """Distribution of the extra time a group takes to its receiver, seconds (`p2prl.sim.link_conditions`)."""
    step_seconds: float = 20.0
    """Virtual seconds of one update."""
    replayed_tokens_s: float = float("inf")
    """Tokens that the learner replays in a virtual second, prompts included."""
    sample_seconds: float = 20.0
    """Virtual seconds of one batch of slots; each volunteer's own speed is within a factor of two of it."""
    partition: tuple[float, float] | None = None
    """Begin and end, in virtual seconds from the start, of a partition that cuts off half of the volunteers."""
    loss: float = 0.0
    """Fraction of frames lost."""
    crashes: int = 0
    """Volunteers that crash once and restart a minute later."""
    groups_per_update: int = 16
    staleness_bound: int = 128
    publish_every: int = 2
    max_virtual_s: float = 24 * 3600.0
    """The simulation stops then, even if the learner has not finished."""
    seed: int = 0
    task: str = "chain4"
    """Name of the run's task."""


@dataclass(frozen=True, slots=True)
class SwarmResult:
    """Figures of a simulated run. Many fields, because `p2prl sim` prints each of them."""

    trace_hash: str
    reward_before: float | None
    """None where no model was trained; so is the other."""
    reward_after: float | None
    updates: int
    virtual_s: float
    messages: int
    bytes: int
    staleness: tuple[float, float, float]
    """p50, p95 and maximum over all groups trained on, in updates."""
    groups_verified: int
    groups_rejected: int
    caught_up_s: float
    """Virtual seconds after the run's end until every volunteer held the last version; −1 after ten minutes without."""
    patch_bytes: int = 0
    """Bytes of patches that volunteers rebuilt versions from."""
    whole_bytes: int = 0
    """Bytes of versions that volunteers downloaded as full weights."""
    brought_bytes: int = 0
    """Size of all versions that reached volunteers, as full weights."""
    links: float = 0.0
    """Links of a volunteer at the end, on average."""
    groups_lost: int = 0
    """Groups sent a minute or more before the end that have not reached the learner."""
    t95_s: float | None = None
    """Virtual seconds from a version's publication until 95 % of the volunteers had it, the median over all versions
    that reached as many; None where none did."""
    source_copies: float | None = None
    """Copies of a version that the learner itself sent, on average; None where a model was trained."""
    costs: Costs = field(default_factory=Costs, compare=False)
    """Of the machine, which another run of the same seed repeats only roughly."""


def schedule_faults(
    network: VirtualNetwork,
    config: SwarmConfig,
    peers: Sequence[PeerId],
    learner: PeerId,
    rng: random.Random,
    *,
    restart: Callable[[PeerId], None],
) -> None:
    """Schedule the partition and the crashes of a swarm whose volunteers are `peers`."""
    if config.partition is not None:
        begins, ends = (START + moment for moment in config.partition)
        network.partition((peers[: len(peers) // 2], [learner, *peers[len(peers) // 2 :]]), begins, ends)
    span = config.updates * config.step_seconds
    for peer in rng.sample(peers, min(config.crashes, len(peers))):
        moment = START + span * rng.random()
        network.at(moment, partial(network.crash, peer))
        network.at(moment + _OUTAGE_S, partial(restart, peer))


def percentiles(values: Sequence[float]) -> tuple[float, float, float]:
    """(p50, p95, largest) of sorted values; zeros for none."""
    if not values:
        return 0.0, 0.0, 0.0
    return float(statistics.median(values)), values[min(len(values) - 1, int(0.95 * len(values)))], values[-1]
