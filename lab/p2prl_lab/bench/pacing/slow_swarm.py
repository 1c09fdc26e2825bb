"""Swarm of fast and slow machines with easy and hard prompts, on the product's simulated queue; an update takes 1 s."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from p2prl.errors import require
from p2prl.learner.timing.capacity import Demand, SamplingMachine
from p2prl.planning.queue_simulation import Order, QueueConfig, QueueResult, SimulatedGroup, simulate_queue


@dataclass(frozen=True, kw_only=True)
class SlowSwarm:
    """A swarm and a learner."""

    order: Order = "soonest"
    updates: int = 200
    groups_per_update: int = 16
    staleness_bound: int = 64
    publish_every: int = 2
    fast_machines: int = 12
    slow_machines: int = 4
    slots: int = 4
    """Groups that a machine samples at once."""
    fast_s: float = 2.0
    """Seconds of an easy group on a fast machine."""
    slow_s: float = 16.0
    hard_factor: float = 3.0
    """How much longer a hard prompt takes."""
    pace_limit: float = 0.25
    """`learner.pace_limit`, for `paced`."""

    def __post_init__(self) -> None:
        require("slow_s", self.slow_s, 0.0 < self.slow_s < 1e6, "above 0")

    @property
    def queue(self) -> QueueConfig:
        """The queue to simulate; the slow machines come last."""
        # Orders differ where groups wait: no machine drains its slots between versions, which leaves too few to wait.
        fast, slow = (
            SamplingMachine(group_s=each, slots=self.slots, drains=False) for each in (self.fast_s, self.slow_s)
        )
        return QueueConfig(
            machines=(fast,) * self.fast_machines + (slow,) * self.slow_machines,
            demand=Demand(
                groups_per_update=self.groups_per_update,
                update_s=1.0,
                staleness_bound=self.staleness_bound,
                publish_every=self.publish_every,
            ),
            order=self.order,
            updates=self.updates,
            pace_limit=self.pace_limit,
        )

    def is_slow(self, group: SimulatedGroup) -> bool:
        """Whether a slow machine sampled the group."""
        return group.machine >= self.fast_machines

    def is_hard(self, group: SimulatedGroup) -> bool:
        """Whether its prompt is hard: it took longer than an easy one."""
        return group.seconds > (self.slow_s if self.is_slow(group) else self.fast_s)


def simulate_swarm(swarm: SlowSwarm, is_hard: Callable[[int, int], bool]) -> QueueResult:
    """Run a learner to its last update; `is_hard` tells of a (machine, prompt number), and nothing else is random."""

    def factor(machine: int, number: int) -> float:
        return swarm.hard_factor if is_hard(machine, number) else 1.0

    return simulate_queue(swarm.queue, factor, random.Random(0))  # noqa: S311 - simulated; no draw is made
