"""Simulated queue of a learner: which groups are trained on at each update, and which grow too stale.

Machines sample without pause, as many groups at once as they have slots, each with the newest version that has reached
them when it begins. As in the product a machine begins nothing more once a newer version is there, until its last group
in flight is done and the time of the switch is over; one with too many groups waiting at the learner stops. Machines
come and go, and lose what they have begun. Time is virtual; the randomness is that of the caller's generator.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from p2prl.client.next_action import AgentConfig
from p2prl.errors import require
from p2prl.learner.intake.lost_work import GroupFacts, LostWork
from p2prl.learner.intake.replay_backlog import BacklogConfig, ReplayBacklog, WaitingGroup
from p2prl.learner.timing.capacity import Demand, SamplingMachine
from p2prl.learner.timing.next_update import SAMPLING_SHARE, pause_s
from p2prl.protocol.digests import Digest, digest
from p2prl.protocol.standing import Rank
from p2prl.swarm.ports import Randomness

Order = Literal["newest", "newest in turns", "soonest", "paced"]
"""newest: newest version first, whatever its author; newest in turns: the same, peers in turns; soonest: the product's
order; paced: that, and the product's pause between updates."""

ORDERS: tuple[Order, ...] = ("newest", "newest in turns", "soonest", "paced")

PACE_LIMIT = 0.25
"""`learner.pace_limit` unless it is set."""

_EVERYTHING = 1 << 30

_BACKLOG = AgentConfig().backlog

Factor = Callable[[int, int], float]
"""(machine, number of its group) -> seconds of the group over the machine's mean."""


@dataclass(frozen=True, kw_only=True)
class QueueConfig:
    """A swarm and a learner."""

    machines: tuple[SamplingMachine, ...]
    demand: Demand
    order: Order = "paced"
    updates: int = 200
    pace_limit: float = PACE_LIMIT
    """`learner.pace_limit`, for `paced`."""
    most_s: float = math.inf
    """Virtual seconds after which the simulation ends, however few updates were made."""

    def __post_init__(self) -> None:
        require("updates", self.updates, 1 <= self.updates <= 100_000, "1 to 100000")
        require("staleness_bound", bound := self.demand.staleness_bound, 1 <= bound <= 10_000, "1 to 10000")
        for machine in self.machines:
            require("group_s", machine.group_s, 0.0 < machine.group_s < 1e9, "above 0")
            require("share_of_time", machine.share_of_time, 0.0 < machine.share_of_time <= 1.0, "above 0, at most 1")
            comes = machine.share_of_time == 1.0 or machine.session_s < math.inf
            require("session_s", machine.session_s, comes, "finite where share_of_time is below 1")


@dataclass(frozen=True, slots=True)
class SimulatedGroup:
    """One group."""

    machine: int
    number: int
    """Of its machine's groups."""
    version_step: int
    """Learner step of the policy it is sampled with."""
    seconds: float


@dataclass(frozen=True)
class QueueResult:
    """What became of the groups that reached the learner."""

    batches: list[list[SimulatedGroup]] = field(default_factory=list)
    """By update."""
    began_s: list[float] = field(default_factory=list)
    """Virtual time at which each update began."""
    lost: list[SimulatedGroup] = field(default_factory=list)
    """Too stale before their turn."""
    seconds: float = 0.0
    """Virtual time at the end of the last update."""

    def share_trained(self, chosen: Callable[[SimulatedGroup], bool]) -> float:
        """Of the settled groups that `chosen` accepts, the share that was trained on; 1 without any."""
        trained = sum(chosen(group) for batch in self.batches for group in batch)
        settled = trained + sum(map(chosen, self.lost))
        return trained / settled if settled else 1.0

    def staleness(self, *, after: int = 0) -> list[int]:
        """Staleness of each group trained on after the first `after` updates, ascending."""
        batches = itertools.islice(enumerate(self.batches), after, None)
        return sorted(step - group.version_step for step, batch in batches for group in batch)


class _Kind(Enum):
    """What happens at a moment."""

    DONE = "a group is done"
    REPLAYED = "a group has passed its replay"
    LEFT = "a machine leaves"
    CAME = "a machine comes back"
    SWITCHED = "a machine has switched to a version"
    UPDATED = "an update ends"


@dataclass(slots=True)
class _Machine:
    """A machine's state."""

    is_here: bool = True
    begun: int = 0
    """Groups begun since the start."""
    in_flight: int = 0
    outstanding: int = 0
    """Begun, and not yet settled by the learner."""
    version_step: int = 0
    ready_s: float = 0.0
    """When it has switched to its version."""
    session: int = 0
    """Times that it left; a group of an earlier session never arrives."""


def simulate_queue(config: QueueConfig, factor: Factor, rng: Randomness) -> QueueResult:
    """Run a learner to its last update; `factor` says how long each group takes."""
    return _Simulation(config, factor, rng).run()


class _Simulation:
    """Machines, what waits at the learner, and the learner's clock.

    More than twelve attributes, because the events of all three are in one queue.
    """

    def __init__(self, config: QueueConfig, factor: Factor, rng: Randomness) -> None:
        self._config, self._factor, self._rng = config, factor, rng
        demand = config.demand
        self._newest = config.order in ("newest", "newest in turns")
        self._in_turns = config.order != "newest"
        in_time = int((1.0 - SAMPLING_SHARE) * demand.staleness_bound * demand.groups_per_update)
        self._in_time = in_time
        self._backlog = ReplayBacklog(
            BacklogConfig(
                batch_groups=demand.groups_per_update,
                surplus_share=0.0,
                newest_first=True,
                in_time=_EVERYTHING if self._newest else in_time,
            ),
            rank=lambda _: Rank.KNOWN,
        )
        self._groups: dict[Digest, SimulatedGroup] = {}
        self._machines = [_Machine() for _ in config.machines]
        self._events: list[tuple[float, int, _Kind, int, SimulatedGroup | None]] = []
        """A heap: time, order of arrival, kind, machine with its session, group."""
        self._numbers = itertools.count()
        self._versions: list[tuple[float, int]] = [(-math.inf, 0)]
        """(time at which it was published, step)."""
        self._step = 0
        self._updating = False
        self._to_replay: deque[tuple[int, SimulatedGroup]] = deque()
        """Groups that have arrived and not been replayed, the one in replay first."""
        self._replay_s = 1.0 / demand.replay_per_s
        self._work = LostWork()
        self._result = QueueResult()

    def run(self) -> QueueResult:
        now, result = 0.0, self._result
        for machine in range(len(self._machines)):
            self._begin_presence(machine)
            self._fill(machine, now)
        while len(result.batches) < self._config.updates or self._updating:
            self._try_update(now)
            if not self._events or self._events[0][0] > self._config.most_s:
                now = self._config.most_s
                break
            now = self._handle(heapq.heappop(self._events))
        return QueueResult(result.batches, result.began_s, result.lost, now)

    def _handle(self, event: tuple[float, int, _Kind, int, SimulatedGroup | None]) -> float:
        now, number, kind, about, group = event
        if kind is _Kind.UPDATED:
            self._updated(now)
        elif kind is _Kind.DONE:
            assert group is not None
            self._done(number, about, group, now)
        elif kind is _Kind.REPLAYED:
            self._replayed(now)
        elif kind is _Kind.SWITCHED:
            self._fill(about, now, switched=True)
        else:
            self._come_or_go(about, now, comes=kind is _Kind.CAME)
        return now

    def _push(self, at: float, kind: _Kind, about: int = 0, group: SimulatedGroup | None = None) -> None:
        heapq.heappush(self._events, (at, next(self._numbers), kind, about, group))

    # --- machines ----------------------------------------------------------------------------------------------

    def _begin_presence(self, machine: int) -> None:
        """Draw whether a machine is there at the start."""
        config = self._config.machines[machine]
        if config.share_of_time == 1.0:
            return
        self._machines[machine].is_here = self._rng.random() < config.share_of_time
        self._until_change(machine, 0.0)

    def _until_change(self, machine: int, now: float) -> None:
        config, state = self._config.machines[machine], self._machines[machine]
        mean_s = config.session_s * (1.0 if state.is_here else 1.0 / config.share_of_time - 1.0)
        kind = _Kind.LEFT if state.is_here else _Kind.CAME
        self._push(now - mean_s * math.log(1.0 - self._rng.random()), kind, machine)

    def _come_or_go(self, machine: int, now: float, *, comes: bool) -> None:
        state = self._machines[machine]
        state.is_here = comes
        if not comes:
            state.session += 1
            state.outstanding -= state.in_flight
            state.in_flight = 0
        self._until_change(machine, now)
        self._fill(machine, now)

    def _fill(self, machine: int, now: float, *, switched: bool = False) -> None:
        """Begin as many groups as a machine has room for; after a switch with the version it has switched to."""
        config, state = self._config.machines[machine], self._machines[machine]
        if not state.is_here or now < state.ready_s or (config.together and state.in_flight):
            return
        version = state.version_step if switched else self._version_at(now - config.version_delay_s)
        if version != state.version_step:
            if config.drains and state.in_flight:
                return  # the last group in flight completes before the switch
            state.version_step, state.ready_s = version, now + config.switch_s
            if config.switch_s:
                self._push(state.ready_s, _Kind.SWITCHED, machine)
                return
        most = max(_BACKLOG, 4 * config.slots)
        seconds = 0.0
        while state.in_flight < config.slots and state.outstanding < most:
            if not (config.together and seconds):
                seconds = config.group_s * self._factor(machine, state.begun)
            group = SimulatedGroup(machine, state.begun, version, seconds)
            state.begun += 1
            state.in_flight += 1
            state.outstanding += 1
            self._push(now + seconds, _Kind.DONE, state.session, group)

    def _version_at(self, moment: float) -> int:
        """Step of the newest version published by a moment."""
        for published_s, step in reversed(self._versions):
            if published_s <= moment:
                return step
        raise AssertionError("version 0 was published before every moment")

    def _done(self, number: int, session: int, group: SimulatedGroup, now: float) -> None:
        state = self._machines[group.machine]
        if session != state.session:
            return  # its machine had left
        state.in_flight -= 1
        acceptance = self._config.machines[group.machine].acceptance
        if acceptance < 1.0 and self._rng.random() >= acceptance:
            state.outstanding -= 1
        else:
            if self._replay_s:
                self._to_replay.append((number, group))
                if len(self._to_replay) == 1:
                    self._push(now + self._replay_s, _Kind.REPLAYED)
            else:
                self._add(number, group)
        self._fill(group.machine, now)

    def _replayed(self, now: float) -> None:
        """The first group to replay has passed. The next is the one that came first, or last while more wait than
        training takes in half the staleness bound, as in the product; none is replayed that is too stale by then."""
        waiting = self._to_replay
        self._add(*waiting.popleft())
        while waiting:
            if len(waiting) > self._in_time:
                waiting.rotate(1)
            if not self._is_stale(waiting[0][1]):
                self._push(now + self._replay_s, _Kind.REPLAYED)
                return
            self._lose(waiting.popleft()[1])

    def _add(self, number: int, group: SimulatedGroup) -> None:
        """Let a replayed group wait for training."""
        if self._is_stale(group):
            self._lose(group)
            return
        name = digest("p2prl/planning", number.to_bytes(8, "big"))
        self._groups[name] = group
        peer = (group.machine if self._in_turns else 0).to_bytes(32, "big")
        # The order by newest version is that of versions counted backwards.
        version = -group.version_step if self._newest else group.version_step
        self._backlog.add(WaitingGroup(name, peer, version, 1))

    def _is_stale(self, group: SimulatedGroup) -> bool:
        return group.version_step < self._step - self._config.demand.staleness_bound

    def _lose(self, group: SimulatedGroup) -> None:
        self._machines[group.machine].outstanding -= 1
        self._work.lost(_facts(group))
        self._result.lost.append(group)

    # --- the learner -------------------------------------------------------------------------------------------

    def _try_update(self, now: float) -> None:
        """Begin an update if the learner is free and has its groups."""
        config, demand = self._config, self._config.demand
        if self._updating or len(self._groups) < demand.groups_per_update:
            return
        batch: list[SimulatedGroup] = []
        while len(batch) < demand.groups_per_update:
            chosen = self._backlog.next_batch(demand.groups_per_update - len(batch))
            self._settle([group.digest for group in chosen], batch)
        self._result.batches.append(batch)
        self._result.began_s.append(now)
        for group in batch:
            self._work.trained(_facts(group))
        self._updating = True
        pause = self._pause_s() if config.order == "paced" else 0.0
        self._push(now + demand.update_s + pause, _Kind.UPDATED)

    def _updated(self, now: float) -> None:
        demand = self._config.demand
        self._updating = False
        self._step += 1
        if self._step % demand.publish_every == 0:
            self._versions.append((now, self._step))
        stale = [name for name, group in self._groups.items() if self._is_stale(group)]
        for name in stale:
            self._work.lost(_facts(self._groups[name]))
        self._settle(stale, self._result.lost)
        for machine in range(len(self._machines)):
            self._fill(machine, now)

    def _settle(self, names: list[Digest], into: list[SimulatedGroup]) -> None:
        """Take groups out of the queue. Machines that had to stop go on when the update ends."""
        self._backlog.settled(names)
        settled = [self._groups.pop(name) for name in names]
        for group in settled:
            self._machines[group.machine].outstanding -= 1
        into += settled

    def _pause_s(self) -> float:
        demand = self._config.demand
        return pause_s(
            demand.update_s,
            sampling_s=self._work.sampling_s,
            staleness_bound=demand.staleness_bound,
            limit=self._config.pace_limit,
        )


def _facts(group: SimulatedGroup) -> GroupFacts:
    return GroupFacts(1.0, group.seconds, group.machine.to_bytes(32, "big"), 0.0)


def staleness_quantile(ages: list[int], share: float) -> float:
    """A quantile of ascending ages; 0 of none."""
    return float(ages[min(len(ages) - 1, int(share * len(ages)))]) if ages else 0.0
