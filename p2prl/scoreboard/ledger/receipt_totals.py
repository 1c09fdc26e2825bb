"""Totals of the learner's receipts: contributors, learner steps, and the state of every group."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from p2prl.protocol import limits
from p2prl.protocol.digests import DIGEST_BYTES
from p2prl.protocol.identity import PUBLIC_KEY_BYTES
from p2prl.protocol.ledger_messages import Receipt, ReceiptState
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.scoreboard.ledger.leaderboard_totals import ESCROW_GROUPS, MICRO, Person, Step, summed

OTHER_REASON = "other"
"""Replaces every unknown reason code: a receipt's free text is never shown."""

MAX_GROUP_TOKENS = limits.MAX_GROUP_SIZE * limits.MAX_COMPLETION_TOKENS
"""Completion tokens that one group can hold."""

_MAX_REWARD = 1e6
"""Beyond any reward specification; bounds the sums that a hostile learner could otherwise inflate."""

_KNOWN_REASONS = frozenset(reason.value for reason in RejectionReason)
_STATES = frozenset(int(state) for state in ReceiptState)
_CREDITED = (ReceiptState.VERIFIED, ReceiptState.CREDITED_BY_SAMPLING)


@dataclass(frozen=True, slots=True)
class CountedGroup:
    """A group with a counted receipt; verdicts are checked against it."""

    peer: bytes
    """Public key of the contributor."""
    version: int
    tokens: int
    credited: bool


class ReceiptTotals:
    """Totals receipts. Only the first receipt of a group counts."""

    def __init__(self) -> None:
        self.people: dict[bytes, Person] = {}
        """By public key."""
        self.steps: dict[int, Step] = {}
        """By learner step, in the order of their first receipt."""
        self.groups: dict[bytes, CountedGroup] = {}
        """By group digest."""

    def add(self, receipt: Receipt, *, step: int, sent_ms: int) -> str | None:
        """Count a receipt. Returns the rule that ignores it, or None when it counts."""
        if not 0 <= step < 1 << 48 or not _is_possible(receipt):
            return "impossible_receipt"
        if receipt.group in self.groups:
            return "second_receipt"
        credited = receipt.state in _CREDITED
        self.groups[receipt.group] = CountedGroup(receipt.peer, receipt.version, receipt.tokens, credited)
        person = self.people.get(receipt.peer) or Person(first_step=step, last_step=step, last_ms=sent_ms)
        self.people[receipt.peer] = _add_to_person(person, receipt, step=step, sent_ms=sent_ms)
        self.steps[step] = _add_to_step(self.steps.get(step) or Step(last_ms=sent_ms), receipt, sent_ms)
        return None


def _is_possible(receipt: Receipt) -> bool:
    return (
        len(receipt.group) == DIGEST_BYTES
        and len(receipt.peer) == PUBLIC_KEY_BYTES
        and 0 <= receipt.version < 1 << 48
        and receipt.state in _STATES
        and 0 <= receipt.tokens <= MAX_GROUP_TOKENS
        and 0 <= receipt.completions <= limits.MAX_GROUP_SIZE
        and math.isfinite(receipt.reward)
        and abs(receipt.reward) <= _MAX_REWARD
    )


def _add_to_person(before: Person, receipt: Receipt, *, step: int, sent_ms: int) -> Person:
    person = replace(
        before,
        first_step=min(before.first_step, step),
        last_step=max(before.last_step, step),
        last_ms=max(before.last_ms, sent_ms),
    )
    reason = receipt.reason if receipt.reason in _KNOWN_REASONS else OTHER_REASON
    if receipt.state == ReceiptState.REJECTED:
        counts = {**person.rejected, reason: person.rejected.get(reason, 0) + 1}
        person = replace(person, rejected=dict(sorted(counts.items())))
        return _forfeit(person) if reason == RejectionReason.EXCLUDED else person
    if receipt.state == ReceiptState.EXPIRED:
        counts = {**person.expired, reason: person.expired.get(reason, 0) + 1}
        return replace(person, expired=dict(sorted(counts.items())))
    verified = receipt.state == ReceiptState.VERIFIED
    return replace(
        person,
        verified_groups=person.verified_groups + verified,
        sampled_groups=person.sampled_groups + (not verified),
        completions=person.completions + receipt.completions,
        tokens=person.tokens + receipt.tokens,
        escrow=(*person.escrow, receipt.tokens)[-ESCROW_GROUPS:],
        reward_micros=person.reward_micros + round(receipt.reward * MICRO) * receipt.completions,
    )


def _forfeit(person: Person) -> Person:
    """An excluded key loses what is in escrow."""
    lost = person.escrow_tokens
    return replace(person, tokens=person.tokens - lost, forfeited_tokens=person.forfeited_tokens + lost, escrow=())


def _add_to_step(step: Step, receipt: Receipt, sent_ms: int) -> Step:
    last_ms = max(step.last_ms, sent_ms)
    if receipt.state == ReceiptState.REJECTED:
        return replace(step, last_ms=last_ms, rejected_groups=step.rejected_groups + 1)
    if receipt.state == ReceiptState.EXPIRED:
        return replace(step, last_ms=last_ms, expired_groups=step.expired_groups + 1)
    micros = round(receipt.reward * MICRO)
    return replace(
        step,
        last_ms=last_ms,
        groups=step.groups + 1,
        completions=step.completions + receipt.completions,
        tokens=step.tokens + receipt.tokens,
        reward_micros=step.reward_micros + micros * receipt.completions,
        reward_squares=step.reward_squares + micros * micros,
        group_reward_micros=step.group_reward_micros + micros,
        versions=summed(step.versions, {receipt.version: 1}),
    )
