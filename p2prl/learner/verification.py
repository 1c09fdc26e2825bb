"""What the learner checks of every group before it trains on it, and what it says about it.

Order: the policy must be one the learner published and within the staleness bound; slot, prompt, tokens and lengths
must be the slot's; then one batched prefill per policy version replays every token against its seed. Rewards and
log-probs are the learner's own; a volunteer's claims are never read into training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from p2prl.learner.journal import Journal, StoredGroup
from p2prl.learner.published_policies import Published, PublishedPolicies
from p2prl.models.engine_port import Engine
from p2prl.models.group_replay import Replay, replay_groups
from p2prl.models.group_work import GroupWork, Inspection
from p2prl.protocol.envelope import body_of, open_envelope
from p2prl.protocol.ledger_messages import Receipt, ReceiptState
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.rollout_group import RolloutGroup


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one group."""

    stored: StoredGroup
    group: RolloutGroup
    state: ReceiptState
    reason: str
    policy: Published | None
    inspection: Inspection | None
    replay: Replay | None

    @property
    def receipt(self) -> Receipt:
        """The receipt to sign. Only verified groups carry tokens and rewards: nothing else earns credit."""
        rewards = self.inspection.rewards if self.inspection is not None and self.state is ReceiptState.VERIFIED else ()
        return Receipt(
            group=self.stored.digest,
            peer=self.stored.peer,
            version=self.stored.version,
            slot=self.stored.slot,
            state=int(self.state),
            reason=self.reason,
            tokens=self.replay.tokens if self.replay is not None and self.state is ReceiptState.VERIFIED else 0,
            completions=len(rewards),
            reward=float(np.mean(rewards)) if rewards else 0.0,
        )


class Verification:
    """Checks stored groups against the published policies."""

    def __init__(
        self, journal: Journal, shelf: PublishedPolicies, work: GroupWork, engine: Engine, *, staleness_bound: int
    ) -> None:
        self._journal = journal
        self._shelf = shelf
        self._work = work
        self._engine = engine
        self._bound = staleness_bound
        self._loaded: int | None = None

    def check(self, groups: Sequence[StoredGroup], step: int) -> list[Outcome]:
        """One outcome per group, in order. Loads each policy version once."""
        outcomes: dict[int, Outcome] = {}
        to_replay: dict[int, list[tuple[int, RolloutGroup, Inspection, Published]]] = {}
        slots_here: set[tuple[bytes, int, int]] = set()
        for index, stored in enumerate(groups):
            group = body_of(open_envelope(stored.raw, now=None), RolloutGroup)
            policy = self._shelf.get(group.version, group.policy)
            slot = (stored.peer, group.version, group.slot)
            if policy is None and self._journal.was_published(group.version, group.policy):
                # Published once, and let go since: the work is late, its author no cheat.
                outcomes[index] = Outcome(
                    stored, group, ReceiptState.EXPIRED, RejectionReason.TOO_STALE, None, None, None
                )
            elif policy is None:
                outcomes[index] = self._refuse(stored, group, RejectionReason.UNKNOWN_POLICY)
            elif step - policy.manifest.step > self._bound:
                outcomes[index] = Outcome(
                    stored, group, ReceiptState.EXPIRED, RejectionReason.TOO_STALE, policy, None, None
                )
            elif slot in slots_here or self._journal.slot_taken(*slot, by_other_than=stored.digest):
                outcomes[index] = self._refuse(stored, group, RejectionReason.DUPLICATE_SLOT)
            else:
                inspection = self._work.inspect(group, peer=stored.peer, beacon=policy.manifest.beacon)
                if inspection.reason:
                    outcomes[index] = self._refuse(stored, group, inspection.reason)
                else:
                    slots_here.add(slot)
                    to_replay.setdefault(group.version, []).append((index, group, inspection, policy))
        for version, entries in to_replay.items():
            self._load(version)
            replays = replay_groups(self._engine, [(group, inspection) for _, group, inspection, _ in entries])
            for (index, group, inspection, policy), replay in zip(entries, replays, strict=True):
                state = ReceiptState.REJECTED if replay.reason else ReceiptState.VERIFIED
                outcomes[index] = Outcome(groups[index], group, state, replay.reason, policy, inspection, replay)
        return [outcomes[index] for index in range(len(groups))]

    def _refuse(self, stored: StoredGroup, group: RolloutGroup, reason: str) -> Outcome:
        return Outcome(stored, group, ReceiptState.REJECTED, reason, None, None, None)

    def _load(self, version: int) -> None:
        if version != self._loaded:
            self._engine.load_weights(self._shelf.weights(version))
            self._loaded = version
