"""Admission of stored groups to their replay: policy, staleness and slot; and what a check results in.

Order of checks: the learner must have published the policy, and it must be within the staleness bound; no other group
may fill the slot; prompt, tokens and lengths must be those of the slot; then one batched prefill per policy version
replays every token against its seed. Only then is it scored: a scorer reads nothing but what a policy sampled. Rewards
and behavior log-probs are the learner's own; a volunteer's claims are never trained on. `Admission` does what needs the
journal, `Replayer` (`replaying.py`) the rest, in a thread of its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from p2prl.learner.journal.groups import StoredGroup
from p2prl.learner.storage import LearnerStorage
from p2prl.models.replay.group_replay import Replay
from p2prl.models.rewards.run_reward import Parts
from p2prl.protocol.digests import Digest
from p2prl.protocol.ledger_messages import ReceiptState
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.rollout_group import RolloutGroup
from p2prl.protocol.signed_group import SignedGroup, read_group
from p2prl.protocol.work_slots import SEED_RULE
from p2prl.swarm.policies.catalog import PolicyVersion

_KEPT_BYTES = 64 * 1024 * 1024
"""Bytes of the groups kept: some thousand of usual size, five of the largest. Without a bound, many keys that each
deliver the limit of one peer would fill the learner's memory."""


class DecodedGroups:
    """Groups by envelope digest. When there are too many, the oldest are dropped and decoded again later."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Digest, tuple[RolloutGroup, int]] = OrderedDict()
        self._bytes = 0

    def keep(self, group: SignedGroup) -> None:
        """Keep a group until it is taken."""
        if group.digest in self._kept:
            return
        self._kept[group.digest] = group.group, group.size_bytes
        self._bytes += group.size_bytes
        while self._bytes > _KEPT_BYTES:
            _, (_, dropped_bytes) = self._kept.popitem(last=False)
            self._bytes -= dropped_bytes

    def take(self, stored: StoredGroup) -> RolloutGroup:
        """Remove and return a group; decode it from its row when it is not kept, as after a restart."""
        if stored.digest not in self._kept:
            return read_group(stored.raw, stored.body).group
        group, size_bytes = self._kept.pop(stored.digest)
        self._bytes -= size_bytes
        return group


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of checking one group."""

    stored: StoredGroup
    group: RolloutGroup
    state: ReceiptState
    reason: str
    policy: PolicyVersion | None = None
    replay: Replay | None = None
    rewards: tuple[float, ...] = ()
    """Of its completions, when it is verified."""
    parts: tuple[Parts, ...] = ()
    """Of these rewards."""
    step_rewards: tuple[tuple[float, ...], ...] = ()
    """`GroupWork.step_rewards` of its completions, when it is verified."""
    is_forged: bool = False
    """Whether two replays found a token that no honest engine samples."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An admitted group: everything its replay needs."""

    stored: StoredGroup
    group: RolloutGroup
    policy: PolicyVersion
    weights: Callable[[], memoryview]
    """Opens the policy's weights (`VersionWeights.open`): a version that is forgotten meanwhile stays readable."""
    is_known: bool = False
    """Whether its author has standing: what that spares is work, no rule depends on it."""


class Admission:
    """Decides which stored groups are worth a replay. Needs the journal, but no model."""

    def __init__(self, storage: LearnerStorage, decoded: DecodedGroups) -> None:
        self._journal = storage.journal
        self._published = storage.published
        self._staleness_bound = storage.manifest.staleness_bound
        self._decoded = decoded

    def is_usable(self, version: int, step: int) -> bool:
        """Whether groups of a version may still be trained on at `step`."""
        policy = self._published.at(version)
        is_fresh = policy is not None and step - policy.manifest.step <= self._staleness_bound
        return is_fresh and self._published.can_replay(version)

    def admit(self, groups: Sequence[StoredGroup], step: int) -> list[Candidate | Outcome]:
        """For each group, in order: a candidate, or the outcome if it needs no replay."""
        return [self._admit(stored, step) for stored in groups]

    def exclude(self, stored: StoredGroup) -> Outcome:
        """The outcome of a group whose author is excluded."""
        return Outcome(stored, self._decoded.take(stored), ReceiptState.REJECTED, RejectionReason.EXCLUDED)

    def _admit(self, stored: StoredGroup, step: int) -> Candidate | Outcome:
        group = self._decoded.take(stored)
        policy = self._published.get(group.version, group.policy)
        if policy is None:
            return self._without_policy(stored, group)
        if not self.is_usable(group.version, step) or group.seeds != SEED_RULE:  # an earlier release sampled it
            return Outcome(stored, group, ReceiptState.EXPIRED, RejectionReason.TOO_STALE, policy)
        if self._journal.groups.slot_taken(stored.peer, group.slot, by_other_than=stored.digest):
            return Outcome(stored, group, ReceiptState.REJECTED, RejectionReason.DUPLICATE_SLOT)
        if stored.reason:  # its slot was not awaited any more when it came
            return Outcome(stored, group, ReceiptState.REJECTED, stored.reason)
        return Candidate(stored, group, policy, self._published.weights(group.version).open)

    def _without_policy(self, stored: StoredGroup, group: RolloutGroup) -> Outcome:
        """Expired if the version has left the window, which is nobody's fault; rejected if it was never published."""
        if self._journal.policies.was_published(group.version, group.policy):
            return Outcome(stored, group, ReceiptState.EXPIRED, RejectionReason.TOO_STALE)
        return Outcome(stored, group, ReceiptState.REJECTED, RejectionReason.UNKNOWN_POLICY)
