"""The volunteer's next action: load a policy, sample slots, or wait. A pure state machine.

It samples with the newest policy it has, and switches to a newer one between batches, never within one. It never waits
for a learner. It pauses only when a learner is in reach and has a backlog of this volunteer's groups, because groups
that the learner cannot use soon become stale rollouts.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.client.batch_size import BatchSize
from p2prl.protocol.digests import Digest
from p2prl.protocol.manifests import PolicyManifest


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentConfig:
    """Pacing of a volunteer."""

    slots_per_batch: int = 0
    """Slots decoded together; 0 measures the best number."""
    backlog: int = 24
    """Groups without a receipt at which a connected volunteer pauses; never fewer than four batches."""


@dataclass(frozen=True, slots=True)
class LocalPolicy:
    """A policy whose weights are on disk."""

    manifest: PolicyManifest
    digest: Digest
    path: str


@dataclass(frozen=True, slots=True)
class Load:
    """Load these weights into the engine."""

    policy: LocalPolicy


@dataclass(frozen=True, slots=True)
class Sample:
    """Decode `count` slots from `first` on, with the loaded policy."""

    policy: LocalPolicy
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing until a message arrives; `reason` is shown to the user."""

    reason: str


Action = Load | Sample | Wait


class Agent:
    """Decides the next action; the shell carries it out and reports back."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._batch_size = BatchSize.chosen(config.slots_per_batch)
        self._newest: LocalPolicy | None = None
        self._loaded: LocalPolicy | None = None
        self._next_slot = 0
        self._finished = False
        self._in_demand = True

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

    def policy_ready(self, policy: LocalPolicy) -> None:
        """The weights of a version are on disk. Versions older than the newest are ignored."""
        if self._newest is None or policy.manifest.version > self._newest.manifest.version:
            self._newest = policy

    def policy_lost(self, policy: LocalPolicy) -> None:
        """A policy is unusable: its file is missing or damaged, or its logits are not finite. Wait for a newer one."""
        if self._loaded is policy:
            self._loaded = None
        if self._newest is policy:
            self._newest = self._loaded

    def emptied(self) -> None:
        """The engine no longer holds a policy: load one again before sampling."""
        self._loaded = None

    def loaded_policy(self, policy: LocalPolicy, *, next_slot: int) -> None:
        """The engine holds `policy`; `next_slot` is its first slot without a group."""
        self._loaded = policy
        self._next_slot = next_slot

    def sampled(self, first: int, count: int, *, tokens: int, seconds: float) -> None:
        """Groups of these slots are in the spool; they have `tokens` and took `seconds` to decode."""
        self._next_slot = max(self._next_slot, first + count)
        self._batch_size.measured(count, tokens=tokens, seconds=seconds, in_demand=self._in_demand)
        self._in_demand = True

    def run_finished(self, finished: bool) -> None:
        """Set whether the learner has ended the run, by its newest signed head. It may resume the run later."""
        self._finished = finished

    def next_action(self, *, outstanding: int, learner_in_reach: bool, staged: bool = True) -> Action:
        """The action to take now. `outstanding` is the number of groups without a receipt.

        Until the waiting policy is `staged`, sampling continues with the one in the engine.
        """
        if self._finished:
            return Wait("the run is finished")
        if self._newest is None:
            return Wait("waiting for the first weights")
        if self._loaded is None or (staged and self._loaded is not self._newest):
            return Load(self._newest)
        if learner_in_reach and outstanding >= max(self._config.backlog, 4 * self._batch_size.count):
            self._in_demand = False
            return Wait("the learner has a backlog of our groups")
        return Sample(self._loaded, self._next_slot, self._batch_size.count)
