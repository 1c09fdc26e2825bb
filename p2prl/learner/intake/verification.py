"""Check every stored group before training: its policy, its staleness, its slot, and a replay of every token.

Order of checks: the learner must have published the policy, and it must be within the staleness bound; prompt, tokens
and lengths must be those of the slot; then one batched prefill per policy version replays every token against its
seed. Rewards and behavior log-probs are the learner's own; a volunteer's claims are never trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from p2prl.learner.intake.decoded_groups import DecodedGroups
from p2prl.learner.journal.groups import StoredGroup
from p2prl.learner.storage import LearnerStorage
from p2prl.models.group_replay import Replay, replay_groups
from p2prl.models.group_work import Inspection, ReplayTools
from p2prl.protocol.ledger_messages import ReceiptState
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.rollout_group import RolloutGroup
from p2prl.swarm.policies.catalog import PolicyVersion


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of checking one group."""

    stored: StoredGroup
    group: RolloutGroup
    state: ReceiptState
    reason: str
    policy: PolicyVersion | None = None
    inspection: Inspection | None = None
    replay: Replay | None = None


class Verification:
    """Checks stored groups against the published policies, with a separate model."""

    def __init__(self, storage: LearnerStorage, tools: ReplayTools, decoded: DecodedGroups) -> None:
        self._journal = storage.journal
        self._published = storage.published
        self._staleness_bound = storage.manifest.staleness_bound
        self._work = tools.work
        self._scorer = tools.scorer
        self._decoded = decoded
        self._loaded: int | None = None

    def check(self, groups: Sequence[StoredGroup], step: int) -> list[Outcome]:
        """One outcome per group, in order. Loads each policy version once."""
        outcomes: dict[int, Outcome] = {}
        to_replay: dict[int, list[tuple[int, RolloutGroup, Inspection, PolicyVersion]]] = {}
        slots_here: set[tuple[bytes, int, int]] = set()
        for index, stored in enumerate(groups):
            group = self._decoded.take(stored)
            policy = self._published.get(group.version, group.policy)
            slot = (stored.peer, group.version, group.slot)
            if policy is None:
                outcomes[index] = self._without_policy(stored, group)
            elif step - policy.manifest.step > self._staleness_bound:
                outcomes[index] = Outcome(stored, group, ReceiptState.EXPIRED, RejectionReason.TOO_STALE, policy)
            elif slot in slots_here or self._journal.groups.slot_taken(*slot, by_other_than=stored.digest):
                outcomes[index] = Outcome(stored, group, ReceiptState.REJECTED, RejectionReason.DUPLICATE_SLOT)
            else:
                inspection = self._work.inspect(group, peer=stored.peer, beacon=policy.manifest.beacon)
                if inspection.reason:
                    outcomes[index] = Outcome(stored, group, ReceiptState.REJECTED, inspection.reason)
                else:
                    slots_here.add(slot)
                    to_replay.setdefault(group.version, []).append((index, group, inspection, policy))
        for version, entries in to_replay.items():
            self._load(version)
            replays = replay_groups(self._scorer, [(group, inspection) for _, group, inspection, _ in entries])
            for (index, group, inspection, policy), replay in zip(entries, replays, strict=True):
                state = ReceiptState.REJECTED if replay.reason else ReceiptState.VERIFIED
                outcomes[index] = Outcome(groups[index], group, state, replay.reason, policy, inspection, replay)
        return [outcomes[index] for index in range(len(groups))]

    def _without_policy(self, stored: StoredGroup, group: RolloutGroup) -> Outcome:
        """Expired if the version has left the window, which is nobody's fault; rejected if it was never published."""
        if self._journal.policies.was_published(group.version, group.policy):
            return Outcome(stored, group, ReceiptState.EXPIRED, RejectionReason.TOO_STALE)
        return Outcome(stored, group, ReceiptState.REJECTED, RejectionReason.UNKNOWN_POLICY)

    def _load(self, version: int) -> None:
        if version != self._loaded:
            self._scorer.load_weights(self._published.weights(version))
            self._loaded = version
