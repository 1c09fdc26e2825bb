"""Simulated queue of a learner: which groups are trained on at each update, and which grow too stale.

Machines sample without pause, as many groups at once as they have slots, each with the newest policy when it begins; a
machine with too many groups waiting at the learner stops, as volunteers do. Hard prompts take longer, and some machines
are slow. Time is virtual, an update takes one second, and no randomness is left once the prompts are known.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from p2prl.errors import require
from p2prl.learner.intake.lost_work import GroupFacts, LostWork
from p2prl.learner.intake.replay_backlog import BacklogConfig, ReplayBacklog, WaitingGroup
from p2prl.learner.timing.schedule import SAMPLING_SHARE, pause_s
from p2prl.protocol.digests import digest
from p2prl.protocol.standing import Rank

Order = Literal["newest", "newest in turns", "soonest", "paced"]
"""newest: newest version first, whatever its author; newest in turns: the same, peers in turns; soonest: the product's
order; paced: that, and the product's pause between updates."""

ORDERS: tuple[Order, ...] = ("newest", "newest in turns", "soonest", "paced")

_MOST_WAITING = 24
"""Groups of a machine at the learner at which it stops, as `AgentConfig.backlog`."""

_EVERYTHING = 1 << 30


@dataclass(frozen=True, kw_only=True)
class QueueConfig:
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
        require("updates", self.updates, 1 <= self.updates <= 100_000, "1 to 100000")
        require("staleness_bound", self.staleness_bound, 1 <= self.staleness_bound <= 10_000, "1 to 10000")
        require("slow_s", self.slow_s, 0.0 < self.slow_s < 1e6, "above 0")


@dataclass(frozen=True, slots=True)
class SimulatedGroup:
    """One group."""

    machine: int
    slot: int
    """Number of the prompt of its machine."""
    version_step: int
    """Learner step of the policy it is sampled with."""
    is_hard: bool
    is_slow: bool
    seconds: float


@dataclass(frozen=True)
class QueueResult:
    """What became of the groups that reached the learner."""

    batches: list[list[SimulatedGroup]] = field(default_factory=list)
    """By update."""
    lost: list[SimulatedGroup] = field(default_factory=list)
    """Too stale before their turn."""
    seconds: float = 0.0
    """Virtual time."""

    def share_trained(self, chosen: Callable[[SimulatedGroup], bool]) -> float:
        """Of the settled groups that `chosen` accepts, the share that was trained on; 1 without any."""
        trained = sum(chosen(group) for batch in self.batches for group in batch)
        settled = trained + sum(map(chosen, self.lost))
        return trained / settled if settled else 1.0

    def staleness(self) -> list[int]:
        """Staleness of each group trained on, ascending."""
        return sorted(step - group.version_step for step, batch in enumerate(self.batches) for group in batch)


def simulate_queue(config: QueueConfig, is_hard: Callable[[int, int], bool]) -> QueueResult:
    """Run a learner to its last update; `is_hard` tells of a (machine, prompt number)."""
    return _Simulation(config, is_hard).run()


class _Simulation:
    """Machines, what waits at the learner, and the learner's clock."""

    def __init__(self, config: QueueConfig, is_hard: Callable[[int, int], bool]) -> None:
        self._config, self._is_hard = config, is_hard
        in_time = int((1.0 - SAMPLING_SHARE) * config.staleness_bound * config.groups_per_update)
        in_turns = config.order != "newest"
        self._backlog = ReplayBacklog(
            BacklogConfig(
                batch_groups=config.groups_per_update,
                surplus_share=0.0,
                newest_first=True,
                in_time=_EVERYTHING if config.order in ("newest", "newest in turns") else in_time,
            ),
            rank=lambda _: Rank.KNOWN,
        )
        self._in_turns = in_turns
        self._newest = config.order in ("newest", "newest in turns")
        self._groups: dict[bytes, SimulatedGroup] = {}
        self._sampling: list[tuple[float, int, SimulatedGroup]] = []
        """A heap by the time they are done."""
        self._numbers = itertools.count()
        self._slots: Counter[int] = Counter()
        self._outstanding: Counter[int] = Counter()
        self._work = LostWork()
        self._result = QueueResult()

    def run(self) -> QueueResult:
        now, config = 0.0, self._config
        machines = range(config.fast_machines + config.slow_machines)
        for machine in machines:
            for _ in range(config.slots):
                self._begin(machine, now, step=0)
        while len(self._result.batches) < config.updates:
            step = len(self._result.batches)
            self._arrive(now, step)
            self._drop_stale(step)
            if len(self._groups) >= config.groups_per_update:
                batch = self._take(config.groups_per_update)
                self._result.batches.append(batch)
                for group in batch:
                    self._work.trained(_facts(group))
                now += 1.0 + self._pause_s()
            else:
                now = max(now, self._sampling[0][0])
            for machine in machines:
                while self._has_room(machine):
                    self._begin(machine, now, step=len(self._result.batches))
        return QueueResult(self._result.batches, self._result.lost, now)

    def _begin(self, machine: int, now: float, *, step: int) -> None:
        config, slot = self._config, self._slots[machine]
        self._slots[machine] += 1
        self._outstanding[machine] += 1
        is_hard, is_slow = self._is_hard(machine, slot), machine >= config.fast_machines
        seconds = (config.slow_s if is_slow else config.fast_s) * (config.hard_factor if is_hard else 1.0)
        version = step - step % config.publish_every
        group = SimulatedGroup(machine, slot, version, is_hard, is_slow, seconds)
        heapq.heappush(self._sampling, (now + seconds, next(self._numbers), group))

    def _has_room(self, machine: int) -> bool:
        sampling = sum(group.machine == machine for _, _, group in self._sampling)
        return sampling < self._config.slots and self._outstanding[machine] < _MOST_WAITING

    def _arrive(self, now: float, step: int) -> None:
        """Take what is done by now; a machine goes on at once, with the policy of that moment."""
        while self._sampling and self._sampling[0][0] <= now:
            done, number, group = heapq.heappop(self._sampling)
            name = digest("lab/p2prl_lab/bench/pacing", number.to_bytes(8, "big"))
            self._groups[name] = group
            peer = bytes([group.machine if self._in_turns else 0]) * 32
            # The order by newest version is that of versions counted backwards.
            version = -group.version_step if self._newest else group.version_step
            self._backlog.add(WaitingGroup(name, peer, version, 1))
            if self._outstanding[group.machine] < _MOST_WAITING:
                self._begin(group.machine, done, step=step)

    def _drop_stale(self, step: int) -> None:
        stale = [
            name for name, group in self._groups.items() if step - group.version_step > self._config.staleness_bound
        ]
        for name in stale:
            self._work.lost(_facts(self._groups[name]))
        self._settle(stale, self._result.lost)

    def _take(self, count: int) -> list[SimulatedGroup]:
        batch: list[SimulatedGroup] = []
        while len(batch) < count:
            chosen = self._backlog.next_batch(count - len(batch))
            self._settle([group.digest for group in chosen], batch)
        return batch

    def _settle(self, names: list[bytes], into: list[SimulatedGroup]) -> None:
        self._backlog.settled(names)  # type: ignore[arg-type]
        for name in names:
            group = self._groups.pop(name)
            self._outstanding[group.machine] -= 1
            into.append(group)

    def _pause_s(self) -> float:
        config = self._config
        if config.order != "paced":
            return 0.0
        return pause_s(
            1.0,
            sampling_s=self._work.sampling_s,
            staleness_bound=config.staleness_bound,
            limit=config.pace_limit,
        )


def _facts(group: SimulatedGroup) -> GroupFacts:
    return GroupFacts(1.0, group.seconds, bytes([group.machine]), 0.0)


def staleness_quantile(ages: list[int], share: float) -> float:
    """A quantile of ascending ages; 0 of none."""
    return float(ages[min(len(ages) - 1, int(share * len(ages)))]) if ages else 0.0
