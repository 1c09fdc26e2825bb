"""Record of one group in a ledger: the first receipt, each validator's first verdict, and the check of it."""

from __future__ import annotations

import pytest

from p2prl.errors import IntegrityError
from p2prl.protocol.ledger_messages import CheckOutcome
from p2prl.scoreboard.group_record import GroupRecord, record_of
from p2prl.scoreboard.ledger.known_run import open_run_manifest
from p2prl_lab.testing.sample_ledgers import LedgerWriter, identity, receipt, verdict_on

ANN, VAL, WALT = identity("ann"), identity("val"), identity("walt")
MINE, OTHER = receipt(0, ANN), receipt(1, ANN)


def found(writer: LedgerWriter) -> GroupRecord:
    return record_of(open_run_manifest(writer.manifest_raw), writer.entries, MINE.group)


def test_the_first_receipt_counts_with_its_place_and_time() -> None:
    writer = LedgerWriter()
    writer.receipts(4, OTHER)
    writer.now += 10
    writer.receipts(5, OTHER, MINE)
    signed_ms = int(writer.now * 1000)
    writer.now += 10
    writer.receipts(6, receipt(0, ANN, tokens=7))
    record = found(writer)
    assert record.height == 3
    assert record.receipt is not None
    assert (record.receipt.entry, record.receipt.step, record.receipt.sent_ms) == (1, 5, signed_ms)
    assert record.receipt.receipt == MINE


def test_each_validators_first_verdict_counts_and_the_first_check_of_it() -> None:
    writer = LedgerWriter()
    writer.receipts(0, MINE, OTHER)
    writer.check(VAL, MINE, CheckOutcome.FAILED)  # before there is a verdict
    writer.add(VAL, verdict_on(OTHER))
    writer.add(VAL, verdict_on(MINE, passed=False))
    writer.add(VAL, verdict_on(MINE))
    writer.check(VAL, OTHER, CheckOutcome.AGREED)
    writer.check(VAL, MINE, CheckOutcome.CONTRADICTED)
    writer.check(VAL, MINE, CheckOutcome.AGREED)
    writer.add(WALT, verdict_on(MINE))
    verdicts = found(writer).verdicts
    assert set(verdicts) == {VAL.public_key, WALT.public_key}
    mine = verdicts[VAL.public_key]
    assert (mine.entry, mine.verdict.passed, mine.outcome) == (3, False, CheckOutcome.CONTRADICTED)
    assert (verdicts[WALT.public_key].verdict.passed, verdicts[WALT.public_key].outcome) == (True, None)


def test_a_hostile_learner_cannot_fill_memory_with_verdicts() -> None:
    writer = LedgerWriter()
    for number in range(80):
        writer.add(identity(f"validator {number}"), verdict_on(MINE))
    verdicts = found(writer).verdicts
    assert len(verdicts) == 64
    assert all(identity(f"validator {number}").public_key in verdicts for number in range(16)), "an honest ledger's"


def test_the_first_broken_entry_is_named() -> None:
    writer = LedgerWriter()
    for step in range(3):
        writer.receipts(step, receipt(step, ANN))
    entry = bytearray(writer.entries[1])
    entry[-1] ^= 1
    writer.entries[1] = bytes(entry)
    with pytest.raises(IntegrityError, match="entry 1 is broken"):
        found(writer)
