"""Check stored groups before training: policy, staleness, slot, contents, and a replay of every token.

Order of checks: the learner must have published the policy, and it must be within the staleness bound; no other group
may fill the slot; prompt, tokens and lengths must be those of the slot; then one batched prefill per policy version
replays every token against its seed. Only then is it scored: a scorer reads nothing but what a policy sampled. Rewards
and behavior log-probs are the learner's own; a volunteer's claims are never trained on. `Admission` does what needs the
journal, `Replayer` the rest, in a thread of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from p2prl.learner.intake.decoded_groups import DecodedGroups
from p2prl.learner.journal.groups import StoredGroup
from p2prl.learner.storage import LearnerStorage
from p2prl.models.group_replay import Replay, replay_groups
from p2prl.models.group_work import Inspection, ReplayTools
from p2prl.models.run_scoring import PendingRewards
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
    replay: Replay | None = None
    rewards: tuple[float, ...] = ()
    """Of its completions, when it is verified."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An admitted group: everything its replay needs."""

    stored: StoredGroup
    group: RolloutGroup
    policy: PolicyVersion
    weights: memoryview
    """The policy's weights, mapped from disk: a version that is deleted meanwhile stays readable."""


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
        return policy is not None and step - policy.manifest.step <= self._staleness_bound

    def admit(self, groups: Sequence[StoredGroup], step: int) -> list[Candidate | Outcome]:
        """For each group, in order: a candidate, or the outcome if it needs no replay."""
        return [self._admit(stored, step) for stored in groups]

    def _admit(self, stored: StoredGroup, step: int) -> Candidate | Outcome:
        group = self._decoded.take(stored)
        policy = self._published.get(group.version, group.policy)
        if policy is None:
            return self._without_policy(stored, group)
        if not self.is_usable(group.version, step):
            return Outcome(stored, group, ReceiptState.EXPIRED, RejectionReason.TOO_STALE, policy)
        if self._journal.groups.slot_taken(stored.peer, group.slot, by_other_than=stored.digest):
            return Outcome(stored, group, ReceiptState.REJECTED, RejectionReason.DUPLICATE_SLOT)
        if stored.reason:  # its slot was not awaited any more when it came
            return Outcome(stored, group, ReceiptState.REJECTED, stored.reason)
        return Candidate(stored, group, policy, self._published.weights(group.version))

    def _without_policy(self, stored: StoredGroup, group: RolloutGroup) -> Outcome:
        """Expired if the version has left the window, which is nobody's fault; rejected if it was never published."""
        if self._journal.policies.was_published(group.version, group.policy):
            return Outcome(stored, group, ReceiptState.EXPIRED, RejectionReason.TOO_STALE)
        return Outcome(stored, group, ReceiptState.REJECTED, RejectionReason.UNKNOWN_POLICY)


class Replayer:
    """Inspects and replays admitted groups with a model of its own. Touches nothing of the main thread's."""

    def __init__(self, tools: ReplayTools) -> None:
        self._work = tools.work
        self._scorer = tools.scorer
        self._loaded: bytes | None = None

    def close(self) -> None:
        """End the processes that score answers."""
        self._work.close()

    @property
    def figures(self) -> dict[str, int]:
        """Answers that could not be scored, as a key of the metrics log; nothing in a run without data."""
        return {"scorer_failures": self._work.scorer_failures} if self._work.scores_data else {}

    def check(self, admitted: Sequence[Candidate | Outcome]) -> list[Outcome]:
        """One outcome per group, in order. Loads each policy version once, and not the one that is loaded.

        All groups are scored together, so that one author's slow answers cost the others nothing.
        """
        outcomes: dict[int, Outcome] = {}
        to_replay: dict[bytes, list[tuple[int, Candidate, Inspection]]] = {}
        slots_here: set[tuple[bytes, int]] = set()
        scoring: dict[int, PendingRewards] = {}
        for index, entry in enumerate(admitted):
            if isinstance(entry, Outcome):
                outcomes[index] = entry
                continue
            stored, group = entry.stored, entry.group
            slot = (stored.peer, group.slot)
            if slot in slots_here:
                outcomes[index] = Outcome(stored, group, ReceiptState.REJECTED, RejectionReason.DUPLICATE_SLOT)
                continue
            inspection = self._work.inspect(group, peer=stored.peer, beacon=entry.policy.manifest.beacon)
            if inspection.reason:
                outcomes[index] = Outcome(stored, group, ReceiptState.REJECTED, inspection.reason)
            else:
                slots_here.add(slot)
                to_replay.setdefault(entry.policy.digest, []).append((index, entry, inspection))
        for digest, entries in sorted(to_replay.items(), key=lambda item: item[0] != self._loaded):
            self.load(digest, entries[0][1].weights)
            work = [(candidate.group, inspection) for _, candidate, inspection in entries]
            replays = replay_groups(self._scorer, work, run_dtype=self._work.dtype)
            for (index, candidate, inspection), replay in zip(entries, replays, strict=True):
                stored, group, policy = candidate.stored, candidate.group, candidate.policy
                if replay.reason:
                    outcomes[index] = Outcome(stored, group, ReceiptState.REJECTED, replay.reason, policy, replay)
                else:
                    outcomes[index] = Outcome(stored, group, ReceiptState.VERIFIED, "", policy, replay)
                    scoring[index] = self._work.start_rewards(
                        inspection.assignment, inspection.token_ids, account=stored.peer
                    )
        for index, pending in scoring.items():
            outcomes[index] = dataclasses.replace(outcomes[index], rewards=pending().values)
        return [outcomes[index] for index in range(len(admitted))]

    def load(self, digest: bytes, weights: memoryview) -> None:
        """Load a policy, unless the model holds it."""
        if digest != self._loaded:
            self._loaded = None
            self._scorer.load_weights(weights)
            self._loaded = digest

    def forget(self) -> None:
        """Somebody else has used the model: it holds no policy, or another."""
        self._loaded = None
