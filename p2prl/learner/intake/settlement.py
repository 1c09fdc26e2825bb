"""Settle checked groups: sign their receipts, write both in one transaction, fill the buffer, publish the receipts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from p2prl.clock import Clock
from p2prl.learner.intake.admission import Outcome
from p2prl.learner.intake.owners import Owners
from p2prl.learner.intake.rollout_buffer import RolloutBuffer
from p2prl.learner.intake.slot_prices import SlotPrices
from p2prl.learner.intake.verdict_checks import VerdictIntake
from p2prl.learner.intake.verified_group import VerifiedGroup
from p2prl.learner.journal.groups import GroupState, StoredGroup
from p2prl.learner.signing_sender import SigningSender
from p2prl.learner.storage import LearnerStorage
from p2prl.models.replay_statistics.baselines import KeptBaselines
from p2prl.protocol import limits
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened, open_envelope
from p2prl.protocol.ledger_messages import Receipt, Receipts, ReceiptState, StorageReceipt


def sign_storage_receipts(sender: SigningSender, stored: Sequence[Digest]) -> Iterator[bytes]:
    """Envelopes that acknowledge stored groups, each with as many groups as a message holds."""
    for start in range(0, len(stored), limits.MAX_DIGESTS_PER_MESSAGE):
        yield sender.sign(StorageReceipt(tuple(stored[start : start + limits.MAX_DIGESTS_PER_MESSAGE])))


def sign_receipts(sender: SigningSender, step: int, outcomes: Sequence[Outcome]) -> bytes:
    """The envelope with one receipt per checked group: an entry of the ledger."""
    return sender.sign(Receipts(step, tuple(receipt_of(outcome) for outcome in outcomes)))


def receipt_of(outcome: Outcome) -> Receipt:
    """The receipt of a checked group. Only verified groups carry tokens and rewards: nothing else earns credit."""
    verified = outcome.state is ReceiptState.VERIFIED
    rewards = outcome.rewards if verified else ()
    return Receipt(
        group=outcome.stored.digest,
        peer=outcome.stored.peer,
        version=outcome.stored.version,
        slot=outcome.stored.slot,
        state=int(outcome.state),
        reason=outcome.reason,
        tokens=outcome.replay.tokens if outcome.replay is not None and verified else 0,
        completions=len(rewards),
        reward=float(np.mean(rewards)) if rewards else 0.0,
    )


_FORGET_EVERY_S = 60.0
"""Time between two deletions of old rows, some thousand each: more than arrive."""


class Settlement:
    """Writes outcomes to the journal, the ledger and the buffer.

    It is given all accounts, because a settled group changes every one of them in one transaction.
    """

    def __init__(
        self,
        storage: LearnerStorage,
        buffer: RolloutBuffer,
        prices: SlotPrices,
        owners: Owners,
        sender: SigningSender,
        clock: Clock,
        verdicts: VerdictIntake,
        *,
        baselines: KeptBaselines,
        on_verified: Callable[[bytes, int, bool], None],
    ) -> None:
        """`baselines` learn from every replay; `on_verified` gets (peer, version, whether it may be trained on) of
        each verified group."""
        self._journal = storage.journal
        self._buffer = buffer
        self._prices = prices
        self._owners = owners
        self._sender = sender
        self._clock = clock
        self._baselines = baselines
        self._verdicts = verdicts
        self._on_verified = on_verified
        self._forget_at = clock.now()

    def settle(self, outcomes: Sequence[Outcome], *, step: int, surplus: bool) -> Opened:
        """Issue one receipt per group, and fill the buffer with the verified ones, or with what is better of a surplus.

        Returns the envelope of the receipts, which everybody will read.
        """
        outcomes, accounts = self._prices.price(outcomes)
        receipts, now = sign_receipts(self._sender, step, outcomes), self._clock.now()
        with self._journal.transaction():
            self._prices.write(accounts)
            if now >= self._forget_at:
                self._forget_at = now + _FORGET_EVERY_S
                self._journal.groups.forget_refused(now - limits.MAX_ENVELOPE_AGE_S)
            verified = [group for outcome in outcomes if (group := self._record(outcome)) is not None]
            self._journal.ledger.append(receipts)
            checks = self._verdicts.settle(outcomes)
            self._owners.enter([*(group.peer for group in verified), *self._verdicts.take_confirmed()])
            kept = [group for group in verified if not self._buffer.leave_out(group, surplus=surplus)]
            dropped = [self._buffer.add_surplus(group) for group in kept] if surplus else []
            left = {group.digest for group in verified} - {group.digest for group in kept}
            for unused in (*sorted(left), *(group.digest for group in dropped if group is not None)):
                self._journal.groups.mark_unused(unused)
        for group in verified:
            if not surplus and group.digest not in left:
                self._buffer.add(group)
            self._on_verified(group.peer, group.group.version, group.digest not in left)
        for envelope in (receipts, *checks):
            self._sender.send(envelope)
        now = self._clock.now()
        for outcome in outcomes:
            if (replay := outcome.replay) is not None:
                self._baselines.record(replay.pair, outcome.stored.peer, replay.evidence, replay.reason, now=now)
        return open_envelope(receipts, now=None)

    def keep_evidence(self, forged: Sequence[StoredGroup]) -> None:
        """Write confirmed forgeries to the journal: their number excludes a peer after a restart too."""
        if forged:
            now = self._clock.now()
            with self._journal.transaction():
                for stored in forged:
                    self._journal.forgeries.add(stored.digest, stored.peer, now, envelope=stored.raw)

    def _record(self, outcome: Outcome) -> VerifiedGroup | None:
        """Write an outcome to the journal; the group when it was verified."""
        digest, policy, replay = outcome.stored.digest, outcome.policy, outcome.replay
        if outcome.state is not ReceiptState.VERIFIED or policy is None or replay is None:
            state = GroupState.EXPIRED if outcome.state is ReceiptState.EXPIRED else GroupState.REJECTED
            self._journal.groups.mark_refused(digest, state=state, reason=outcome.reason)
            if state is GroupState.EXPIRED:
                self._buffer.expired(outcome.group, outcome.stored.peer)
            return None
        behavior, steps = _packed(replay.behavior_logprobs), _packed(outcome.step_rewards)
        rewards = np.asarray(outcome.rewards, dtype="<f4").tobytes()
        self._journal.groups.mark_verified(digest, behavior=behavior, rewards=rewards, step_rewards=steps)
        return VerifiedGroup(
            digest=digest,
            peer=outcome.stored.peer,
            group=outcome.group,
            policy_step=policy.manifest.step,
            behavior=behavior,
            rewards=rewards,
            verified_at=self._clock.now(),
            step_rewards=steps,
            parts=outcome.parts,
        )


def _packed(rows: Sequence[Sequence[float]]) -> bytes:
    """Numbers of a group's tokens as little-endian float32, one completion after another."""
    return b"".join(np.asarray(row, dtype="<f4").tobytes() for row in rows)
