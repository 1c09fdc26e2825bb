"""Everything a ledger says about one group: the learner's receipt, the validators' verdicts and the checks of these."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from p2prl.errors import IntegrityError, RemoteProtocolError
from p2prl.protocol import ledger_chain
from p2prl.protocol.ledger_messages import Receipt, Receipts, Verdict, VerdictChecks
from p2prl.scoreboard.ledger.known_run import KnownRun

MOST_VERDICTS = 64
"""Verdicts remembered of one group: a learner lets 16 into its ledger, and only a hostile one lets in more."""


@dataclass(frozen=True, slots=True)
class SignedReceipt:
    """The learner's receipt of the group; its first one counts."""

    entry: int
    """Height of its ledger entry."""
    step: int
    sent_ms: int
    """When the learner signed it, Unix milliseconds."""
    receipt: Receipt


@dataclass(frozen=True, slots=True)
class SignedVerdict:
    """A validator's verdict on the group."""

    entry: int
    validator: bytes
    """Public key."""
    verdict: Verdict
    outcome: int | None = None
    """`CheckOutcome` of the learner's check of it; None before the check."""


@dataclass(slots=True)
class GroupRecord:
    """What the entries of a ledger say about one group."""

    height: int = 0
    """Entries read."""
    receipt: SignedReceipt | None = None
    verdicts: dict[bytes, SignedVerdict] = field(default_factory=dict)
    """By validator; the first one of each counts."""


def record_of(run: KnownRun, entries: Iterable[bytes], group: bytes) -> GroupRecord:
    """Follow a ledger from its first entry and collect what it says about a group.

    Raises `IntegrityError` naming the first entry that breaks the chain: what follows it proves nothing.
    """
    record, head = GroupRecord(), ledger_chain.GENESIS
    for raw in entries:
        height = record.height
        try:
            opened, head = ledger_chain.follow(raw, height=height, head=head, run=run.run, learner=run.ledger_key)
        except (IntegrityError, RemoteProtocolError) as error:
            raise IntegrityError(
                f"entry {height} is broken: {error}", remedy="Get the ledger again: p2prl ledger verify LINK."
            ) from error
        body = opened.body
        if isinstance(body, Receipts) and record.receipt is None:
            mine = next((receipt for receipt in body.receipts if receipt.group == group), None)
            if mine is not None:
                record.receipt = SignedReceipt(height, body.step, opened.sent_ms, mine)
        elif isinstance(body, Verdict) and body.group == group and len(record.verdicts) < MOST_VERDICTS:
            record.verdicts.setdefault(opened.author, SignedVerdict(height, opened.author, body))
        elif isinstance(body, VerdictChecks):
            for check in body.checks:
                known = record.verdicts.get(check.validator)
                if check.group == group and known is not None and known.outcome is None:
                    record.verdicts[check.validator] = SignedVerdict(
                        known.entry, known.validator, known.verdict, check.outcome
                    )
        record.height += 1
    return record
