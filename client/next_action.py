"""The volunteer's next action: load a policy, sample slots, or wait. A pure state machine.

It keeps slots in flight under the newest policy it has; their groups are complete in any order. A group declares one
policy, so once a newer one is staged it submits nothing more, and switches when the last group is complete. It never
waits for a learner. It pauses only when its groups would not be trained on: while a learner in reach has a backlog of
them, and, after a rest or an absence, while the learner's announced step shows that it is past these weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from p2prl.client.slot_numbers import SlotNumbers
from p2prl.client.slots_in_flight import SlotsInFlight
from p2prl.protocol.digests import Digest
from p2prl.protocol.manifests import PolicyManifest


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentConfig:
    """Pacing of a volunteer."""

    slots_in_flight: int = 0
    """Slots sampled at a time; 0 measures the best number."""
    backlog: int = 24
    """Groups without a receipt at which a connected volunteer pauses; never fewer than four times the slots in
    flight."""


@dataclass(frozen=True, slots=True)
class LocalPolicy:
    """A policy whose weights are on disk."""

    manifest: PolicyManifest
    digest: Digest
    path: str
    """For `open_weights`."""


@dataclass(frozen=True, slots=True)
class Load:
    """Load these weights into the engine."""

    policy: LocalPolicy


@dataclass(frozen=True, slots=True)
class Sample:
    """Submit these slots, if any, with the loaded policy, and decode what is in flight for a while."""

    policy: LocalPolicy
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing until a message arrives; `reason` is shown to the user."""

    reason: str


Action = Load | Sample | Wait


class Agent:
    """Decides the next action; the shell carries it out and reports back.

    More than twelve attributes, because each reason to wait begins and ends by itself.
    """

    def __init__(self, config: AgentConfig, slots: SlotNumbers | None = None, *, sampled_version: int = -1) -> None:
        """`slots` knows which were sampled before a restart, and `sampled_version` is the newest they were sampled
        with; −1 for none. An older version is never loaded again: a learner takes no falling versions."""
        self._config = config
        self._slots = slots or SlotNumbers()
        self._target = SlotsInFlight.chosen(config.slots_in_flight)
        self._newest: LocalPolicy | None = None
        self._loaded: LocalPolicy | None = None
        self._finished = False
        self._stopping = False
        self._resting = ""
        self._slow = ""
        self._standby = ""
        self._draining = False
        self._in_demand = True
        self._sampled_version = sampled_version

    @property
    def loaded(self) -> LocalPolicy | None:
        """The policy in the engine."""
        return self._loaded

    @property
    def waiting(self) -> LocalPolicy | None:
        """A newer policy than the one in the engine."""
        return None if self._newest is self._loaded else self._newest

    @property
    def held_version(self) -> int:
        """Newest version whose weights are on disk; −1 before the first."""
        return -1 if self._newest is None else self._newest.manifest.version

    @property
    def finished(self) -> bool:
        """Whether the learner has ended the run."""
        return self._finished

    @property
    def done(self) -> bool:
        """Whether it was told to stop, and nothing in flight is of use any more."""
        return self._stopping and (self._finished or not self.in_flight)

    @property
    def in_flight(self) -> int:
        """Slots submitted and not complete."""
        return self._slots.in_flight

    @property
    def lowest_slot(self) -> int:
        """Lowest slot that has no group and was not skipped."""
        return self._slots.lowest

    def policy_ready(self, policy: LocalPolicy) -> None:
        """The weights of a version are on disk. Versions older than the newest are ignored."""
        newest = self._sampled_version - 1 if self._newest is None else self._newest.manifest.version
        if policy.manifest.version > newest:
            self._newest = policy

    def policy_lost(self, policy: LocalPolicy) -> None:
        """A policy is unusable: its file is missing or damaged, or its logits are not finite. Wait for a newer one."""
        if self._loaded is policy:
            self.emptied()
        if self._newest is policy:
            self._newest = self._loaded

    def emptied(self) -> None:
        """The engine no longer holds a policy, and nothing is in flight: load one again before sampling."""
        self._loaded = None
        self._slots.dropped()

    def loaded_policy(self, policy: LocalPolicy) -> None:
        """The engine holds `policy`. Slot numbers continue."""
        self._loaded = policy
        self._draining = False

    def skip_to(self, slot: int) -> None:
        """Go on with this slot, unless it is lower than the next one."""
        self._slots.skip_to(slot)

    def submitted(self, slots: Iterable[int]) -> None:
        """These slots are in flight."""
        self._slots.submitted(slots)

    def completed(self, slots: Iterable[int]) -> None:
        """The groups of these slots are in the spool, or cannot be made."""
        self._slots.done(slots)

    def decoded(self, busy: float, *, tokens: int, steps: int, seconds: float) -> None:
        """Decoding gave `tokens`; it began with the completions of `busy` slots in flight."""
        self._target.measured(busy, tokens=tokens, steps=steps, seconds=seconds, in_demand=self._in_demand)

    def run_finished(self, finished: bool) -> None:
        """Set whether the learner has ended the run, by its newest signed head. It may resume the run later."""
        self._finished = finished

    def stop(self) -> None:
        """Complete what is in flight, and submit nothing more."""
        self._stopping = True

    def rest(self, reason: str) -> None:
        """Load and submit nothing until this is called with an empty reason. What is in flight was dropped."""
        self._resting = reason

    def slow_down(self, reason: str) -> None:
        """Submit one slot at a time, and none while a group has no receipt. An empty reason ends it."""
        self._slow = reason

    def stand_by(self, reason: str) -> None:
        """Complete what is in flight, and load and submit nothing until this is called with an empty reason."""
        self._standby = reason

    def next_action(
        self,
        *,
        outstanding: int,
        learner_in_reach: bool,
        busy: float = 0.0,
        room: int = 1,
        staged: bool = True,
        oldest_step: int = 0,
    ) -> Action:
        """The action to take now. `outstanding` is the number of groups without a receipt; `busy` is the number of
        completions in flight and `room` that of further ones that fit the engine's memory, both in slots. Groups of
        policies from before learner step `oldest_step` are not trained on any more.

        Until the waiting policy is `staged`, sampling continues with the one in the engine.
        """
        if self._finished:
            return Wait("the run is finished")
        if self._stopping:
            return self._go_on("stopping")
        if self._resting:
            return Wait(self._resting)
        if self._standby:
            return self._go_on(self._standby)
        if self._newest is None:
            return Wait("waiting for the first weights")
        if self._newest is self._loaded:
            self._draining = False
        elif self._loaded is None or staged or self._draining:
            # Once begun it goes on, even if a still newer policy has to be staged: else versions that come faster than
            # groups are complete would put off the switch without end.
            self._draining = True
            return self._go_on("") if self.in_flight else Load(self._newest)
        assert self._loaded is not None
        if self._loaded.manifest.step < oldest_step:
            return self._go_on("the run is past these weights; waiting for newer ones")
        if self._slow and (outstanding or self.in_flight):
            return self._go_on(self._slow)
        self._in_demand = not learner_in_reach or outstanding < max(self._config.backlog, 4 * self._target.count)
        if not self._in_demand:
            return self._go_on("waiting until the learner has checked more of your groups")
        return Sample(self._loaded, tuple(itertools.islice(self._slots.free(), self._wanted(busy, room))))

    def _go_on(self, reason: str) -> Sample | Wait:
        """Decode what is in flight; wait for `reason` when nothing is."""
        return Sample(self._loaded, ()) if self.in_flight and self._loaded is not None else Wait(reason)

    def _wanted(self, busy: float, room: int) -> int:
        """Slots to submit now.

        Completions are counted, not groups: one long completion keeps its group open while the others' rows are free.
        An empty engine gets one slot whatever its room.
        """
        if self._slow:
            return 1
        missing = round(self._target.count - busy)
        if busy and missing < self._target.lot:
            return 0
        if self._config.slots_in_flight:
            return max(0, missing)
        return max(0 if busy else 1, min(missing, room))
