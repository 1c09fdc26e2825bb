"""Capacity: how many useful groups a swarm samples in an update's time, and how often the learner can update with them.

With S the staleness bound, κ the updates between versions, R the groups of an update, T its seconds and P the seconds
from one update to the next, machine i brings at a time

    useful_i(P) = a_i v_i e_i(P) (c_i / τ_i) · E_U[ F_i( (S − U − ½) P − b_i ) ]          U uniform on (0, κ)

groups a second: it works a share a_i of the time, a share v_i of its groups pass, c_i groups at once take τ_i seconds
each, F_i is the distribution of that time, and a version arrives b_i seconds after it is published. e_i is the share
of its slots that is at work although a switch of versions waits for the last group in flight and takes some time
itself, and although a machine that leaves loses what it had begun. The learner's pace is the fixed point

    P* = min { P ≥ T : min( Σ useful_i(P), replays a second ) · P ≥ R }                   utilization = T / P*

Σ a v μ ≥ R / T, the rule of ECHO-2 (arXiv 2602.02192, §4), is the case F = e = 1. Staleness counts updates, so a
learner that waits makes the same work fresher: without the fixed point, fleets that keep a learner at work for three
quarters of the time are counted as worth nothing. Pure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

BROADCAST_OVER_BOUND = 1.06
"""Time in which 95 % of the volunteers have a version over the least possible (docs/benchmarks/spread.md)."""

_PHASES = 16
"""Moments between two versions at which sampling may begin, in the mean over them."""

_SLOWEST = 1e6
"""A learner that waits longer than this many updates' time for its groups counts as stopped."""

_HALVINGS = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingMachine:
    """A machine as a source of groups."""

    group_s: float
    """τ: mean seconds of a group, with all slots at work."""
    slots: int = 4
    """c: groups sampled at once."""
    spread: float = 0.0
    """Standard deviation of the logarithm of a group's seconds, which are lognormal."""
    share_of_time: float = 1.0
    """a: share of the time in which it samples."""
    session_s: float = math.inf
    """Mean seconds from its coming to its leaving. What it has begun is lost when it leaves."""
    acceptance: float = 1.0
    """v: share of its groups that pass the learner's check."""
    version_delay_s: float = 0.0
    """b: seconds from the end of an update until it samples with that version, if it is idle."""

    switch_s: float = 0.0
    """Seconds that a switch to a version takes, in which it samples nothing."""

    drains: bool = True
    """Whether a switch of versions waits for the last group in flight, as the product's does."""
    together: bool = False
    """Whether its groups in flight begin and end at once, so that it has none to wait for before a switch."""

    @property
    def groups_per_s(self) -> float:
        """Accepted groups a second, were none too stale and no slot ever idle while it is there."""
        return self.share_of_time * self.acceptance * self.slots / self.group_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """What a learner consumes."""

    groups_per_update: int
    """R."""
    update_s: float
    """T: seconds of an update when no group is waited for."""
    staleness_bound: int
    """S: updates."""
    publish_every: int
    """κ: updates between versions."""
    replay_per_s: float = math.inf
    """Groups a second that its replays check beside the updates."""

    @property
    def groups_per_s(self) -> float:
        """Groups a second that keep the learner at work."""
        return self.groups_per_update / self.update_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Capacity:
    """The pace that machines allow a learner."""

    interval_s: float
    """P*: seconds between updates; infinite if they cannot bring one update's groups in time."""
    utilization: float
    """Share of the time in which the learner is at work: T / P*."""
    sampled_per_s: float
    """Groups a second that pass the check, at any age."""
    useful_per_s: float
    """Those that are also in time, were the learner always at work."""

    @property
    def saturated(self) -> bool:
        """Whether the learner never waits for groups."""
        return self.utilization >= 1.0


def capacity_of(machines: Sequence[SamplingMachine], demand: Demand) -> Capacity:
    """The pace that machines allow: the smallest interval in which they bring one update's groups in time."""

    kinds = Counter(machines)

    def useful_at(interval_s: float) -> float:
        return math.fsum(number * useful_rate([kind], demand, interval_s) for kind, number in kinds.items())

    def suffices(interval_s: float) -> bool:
        return min(useful_at(interval_s), demand.replay_per_s) * interval_s >= demand.groups_per_update

    sampled = math.fsum(number * kind.groups_per_s for kind, number in kinds.items())
    useful = useful_at(demand.update_s)
    least, most = demand.update_s, demand.update_s * _SLOWEST
    if suffices(least):
        return Capacity(interval_s=least, utilization=1.0, sampled_per_s=sampled, useful_per_s=useful)
    if not suffices(most):
        return Capacity(interval_s=math.inf, utilization=0.0, sampled_per_s=sampled, useful_per_s=useful)
    for _ in range(_HALVINGS):  # of the logarithm: a longer interval brings more groups, and none of them too late
        middle = math.sqrt(least * most)
        least, most = (least, middle) if suffices(middle) else (middle, most)
    return Capacity(interval_s=most, utilization=demand.update_s / most, sampled_per_s=sampled, useful_per_s=useful)


def useful_rate(machines: Iterable[SamplingMachine], demand: Demand, interval_s: float) -> float:
    """Groups a second that pass the check and are in time, if an update begins every `interval_s` seconds."""
    return math.fsum(
        machine.groups_per_s
        * _at_work(machine, demand.publish_every * interval_s)
        * _in_time(machine, demand, interval_s)
        for machine in machines
    )


def _in_time(machine: SamplingMachine, demand: Demand, interval_s: float) -> float:
    """Share of a machine's groups that are within the staleness bound when an update takes them."""
    total = 0.0
    for phase in range(_PHASES):
        behind = demand.publish_every * (phase + 0.5) / _PHASES
        left_s = (demand.staleness_bound - behind - 0.5) * interval_s - machine.version_delay_s
        total += _done_within(machine, left_s)
    return total / _PHASES


def _done_within(machine: SamplingMachine, seconds: float) -> float:
    """F: probability that a group takes no longer."""
    if seconds <= 0.0:
        return 0.0
    if machine.spread == 0.0:
        return float(machine.group_s <= seconds)
    return NormalDist().cdf(math.log(seconds / machine.group_s) / machine.spread + machine.spread / 2)


def _at_work(machine: SamplingMachine, version_s: float) -> float:
    """e: share of the slots' time that ends in a group, with a new version every `version_s` seconds."""
    between = max(version_s, machine.group_s)
    waits = machine.drains and not machine.together
    idle_s = machine.group_s * (_longest_of(machine.slots, machine.spread) - 1.0) if waits else 0.0
    ratio = machine.group_s / machine.session_s
    kept = ratio / math.expm1(ratio) if 1e-9 < ratio < 700.0 else float(ratio <= 1e-9)
    switched = 1.0 - machine.switch_s / max(version_s, machine.group_s + machine.switch_s)
    return between / (between + idle_s) * switched * kept


def _longest_of(count: int, spread: float) -> float:
    """Mean of the longest of `count` lognormal times with mean 1, by quantiles (Blom, 1958)."""
    if spread == 0.0 or count == 1:
        return 1.0
    normal = NormalDist().inv_cdf((count - 0.375) / (count + 0.25))
    return max(1.0, math.exp(spread * normal - spread**2 / 2))


def broadcast_s(
    version_bytes: float, *, learner_bytes_s: float, down_bytes_s: float, up_bytes_s: Sequence[float]
) -> float:
    """Seconds until a version of `version_bytes` has reached a peer that downloads at `down_bytes_s`.

    `up_bytes_s` are the uplinks that all peers share with each other. The least possible time (Kumar and Ross, 2006),
    times what the relay takes over it.
    """
    together = learner_bytes_s + math.fsum(up_bytes_s)
    least = max(1.0 / learner_bytes_s, 1.0 / down_bytes_s, max(1, len(up_bytes_s)) / together)
    return BROADCAST_OVER_BOUND * version_bytes * least
