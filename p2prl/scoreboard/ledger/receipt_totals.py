"""Totals of the learner's receipts: contributors, learner steps, and the state of every group."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from p2prl.protocol import limits
from p2prl.protocol.digests import DIGEST_BYTES
from p2prl.protocol.identity import PUBLIC_KEY_BYTES
from p2prl.protocol.ledger_messages import Receipt, ReceiptState
from p2prl.scoreboard.ledger.marks import RunMarksSoFar
from p2prl.scoreboard.ledger.owner_totals import CREDITED, CountedReceipt, OwnerTotals, reason_place
from p2prl.scoreboard.ledger.total_rows import MICRO, Step, summed

MAX_GROUP_TOKENS = limits.MAX_GROUP_SIZE * limits.MAX_COMPLETION_TOKENS
"""Completion tokens that one group can hold."""

_MAX_REWARD = 1e6
"""Beyond any reward specification; bounds the sums that a hostile learner could otherwise inflate."""

_STATES = frozenset(int(state) for state in ReceiptState)


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
        self.owners = OwnerTotals()
        self.steps: dict[int, Step] = {}
        """By learner step, in the order of their first receipt."""
        self.groups: dict[bytes, CountedGroup] = {}
        """By group digest."""
        self.marks = RunMarksSoFar()

    def add(self, receipt: Receipt, *, step: int, sent_ms: int) -> str | None:
        """Count a receipt. Returns the rule that ignores it, or None when it counts."""
        if not 0 <= step < 1 << 48 or not _is_possible(receipt):
            return "impossible_receipt"
        if receipt.group in self.groups:
            return "second_receipt"
        credited = receipt.state in CREDITED
        self.groups[receipt.group] = CountedGroup(receipt.peer, receipt.version, receipt.tokens, credited)
        counted = CountedReceipt(
            sent_ms=sent_ms,
            step=step,
            state=receipt.state,
            reason=reason_place(receipt.reason),
            completions=receipt.completions,
            tokens=receipt.tokens,
            reward_micros=round(receipt.reward * MICRO) * receipt.completions,
        )
        self.owners.add(receipt.peer, counted, receipt.group)
        if credited:
            self.marks.credited(receipt.tokens, sent_ms)
        self.marks.people(len(self.owners.people), sent_ms)
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
