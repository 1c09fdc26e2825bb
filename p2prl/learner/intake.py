"""What comes in: groups are stored and said to be, checked when there is room, and get their receipts; verdicts follow.

Everything is in the journal before it is said, and in one transaction with what it belongs to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from p2prl.clock import Clock
from p2prl.learner.journal import Journal, StoredGroup
from p2prl.learner.published_policies import PublishedPolicies
from p2prl.learner.signing_sender import SigningSender
from p2prl.learner.staleness_buffer import ReadyGroup, RolloutBuffer
from p2prl.learner.verification import Outcome, Verification
from p2prl.protocol import limits
from p2prl.protocol.envelope import Opened, body_of, open_envelope
from p2prl.protocol.kinds import Kind
from p2prl.protocol.ledger_messages import Receipts, ReceiptState, StorageReceipt, Verdict
from p2prl.protocol.rollout_group import RolloutGroup

TURNED_AWAY = ("unknown_policy", "too_many")
"""Why a group is not taken in: it names no policy of this learner; its peer has too many waiting for their check."""


class Intake:
    """Groups and verdicts on their way into the journal, the buffer and the ledger."""

    def __init__(
        self,
        *,
        journal: Journal,
        shelf: PublishedPolicies,
        verification: Verification,
        buffer: RolloutBuffer,
        voice: SigningSender,
        clock: Clock,
        on_verified: Callable[[StoredGroup, float], None] = lambda group, now: None,  # noqa: ARG005
    ) -> None:
        """`on_verified` hears of every group that stands its check, and when."""
        self._journal = journal
        self._shelf = shelf
        self._verification = verification
        self._buffer = buffer
        self._voice = voice
        self._clock = clock
        self._on_verified = on_verified
        self._turned_away: Counter[str] = Counter(dict.fromkeys(TURNED_AWAY, 0))

    def turned_away(self) -> dict[str, int]:
        """Groups that were not taken in since the start, by why."""
        return dict(self._turned_away)

    def receive(self, envelopes: Sequence[bytes]) -> bool:
        """Store the groups among these in one transaction and say so; take the verdicts. True: the ledger has grown."""
        opened = [open_envelope(raw, now=None) for raw in envelopes]
        self._take_groups([each for each in opened if each.kind is Kind.ROLLOUT_GROUP])
        # After the groups: a verdict may have come with the group it is about.
        return self._take_verdicts([each for each in opened if each.kind is Kind.VERDICT])

    def refill_buffer(self) -> None:
        """Put the verified groups of the journal back into the buffer, after a start."""
        for stored in self._journal.in_state("verified", limit=1_000_000):
            group = body_of(open_envelope(stored.raw, now=None), RolloutGroup)
            policy = self._shelf.get(group.version, group.policy)
            if policy is None:
                with self._journal.transaction():
                    self._journal.unused(stored.digest)
                continue
            reward = float(np.frombuffer(stored.rewards, dtype="<f4").mean())
            self._buffer.add(ReadyGroup(stored.digest, stored.peer, policy.manifest.step, reward))

    def has_unchecked(self) -> bool:
        """Whether a stored group waits for its check."""
        return bool(self._journal.in_state("stored", 1))

    def check(self, most: int, *, step: int) -> bool:
        """Check up to `most` stored groups, sign what became of them, tell everyone. False when none waited."""
        pending = self._journal.unchecked(most)
        if not pending:
            return False
        outcomes = self._verification.check(pending, step)
        envelope = self._voice.sealed(Receipts(step, tuple(outcome.receipt for outcome in outcomes)))
        with self._journal.transaction():
            for outcome in outcomes:
                self._settle(outcome)
            self._journal.append(envelope)
            self._journal.settled([outcome.stored.digest for outcome in outcomes])
        for outcome in outcomes:
            if outcome.state is ReceiptState.VERIFIED and outcome.policy is not None and outcome.inspection is not None:
                reward = float(np.mean(outcome.inspection.rewards))
                ready = ReadyGroup(outcome.stored.digest, outcome.stored.peer, outcome.policy.manifest.step, reward)
                self._buffer.add(ready)
                self._on_verified(outcome.stored, self._clock.now())
        self._voice.send(envelope)
        return True

    def _take_groups(self, arrived: Sequence[Opened]) -> None:
        if not arrived:
            return
        now = self._clock.now()
        with self._journal.transaction():
            digests = tuple(opened.digest for opened in arrived if self._take_in(opened, now))
        for start in range(0, len(digests), limits.MAX_DIGESTS_PER_MESSAGE):
            self._voice.say(StorageReceipt(digests[start : start + limits.MAX_DIGESTS_PER_MESSAGE]))

    def _take_in(self, opened: Opened, now: float) -> bool:
        """Store a group, or know it already; False when it names no policy of ours or its peer has too many waiting."""
        if self._journal.knows(opened.digest):
            return True
        group = body_of(opened, RolloutGroup)
        ours = self._shelf.get(group.version, group.policy) or self._journal.was_published(group.version, group.policy)
        if not ours:
            self._turned_away["unknown_policy"] += 1
            return False
        if self._journal.unchecked_of(opened.author) >= limits.MAX_UNCHECKED_GROUPS_PER_PEER:
            self._turned_away["too_many"] += 1
            return False
        stored = StoredGroup(opened.digest, opened.author, group.version, group.slot, opened.raw, b"", b"")
        return self._journal.store(stored, now)

    def _take_verdicts(self, verdicts: Sequence[Opened]) -> bool:
        """Put verdicts on groups that are here into the ledger."""
        if not verdicts:
            return False
        height = self._journal.height
        with self._journal.transaction():
            for opened in verdicts:
                self._journal.add_verdict(body_of(opened, Verdict), opened.author, opened.raw)
        return self._journal.height > height

    def _settle(self, outcome: Outcome) -> None:
        digest = outcome.stored.digest
        if outcome.state is ReceiptState.VERIFIED and outcome.replay is not None and outcome.inspection is not None:
            behavior = np.concatenate([np.asarray(row, dtype="<f4") for row in outcome.replay.behavior_logprobs])
            rewards = np.asarray(outcome.inspection.rewards, dtype="<f4")
            self._journal.verified(digest, behavior=behavior.tobytes(), rewards=rewards.tobytes())
        else:
            state = "expired" if outcome.state is ReceiptState.EXPIRED else "rejected"
            self._journal.refused(digest, state=state, reason=outcome.reason)
