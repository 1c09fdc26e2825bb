"""Checks of verdicts, escrow and disputes in the fold of the ledger."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from p2prl.errors import RemoteProtocolError
from p2prl.protocol.digests import digest
from p2prl.protocol.identity import Identity
from p2prl.protocol.ledger_messages import CheckOutcome, ReceiptState, VerdictCheck, VerdictChecks
from p2prl.scoreboard.ledger.ledger_fold import BoardState, LedgerFold
from p2prl.scoreboard.ledger.total_rows import Validator
from p2prl_lab.testing.sample_ledgers import LedgerWriter, identity, receipt, verdict_on

ANN, BOB, EVE = identity("ann"), identity("bob"), identity("eve")


def fold(writer: LedgerWriter) -> BoardState:
    board = LedgerFold(run=writer.run, learner=writer.learner.public_key, parameters=writer.manifest.parameters)
    for raw in writer.entries:
        board.follow(raw)
    return board.state()


def known(writer: LedgerWriter, *names: str) -> list[Identity]:
    """Validators that are known by their checks, on groups of their own numbers."""
    keys = [identity(name) for name in names]
    for place, key in enumerate(keys):
        for number in range(8):
            row = receipt(1_000 + 8 * place + number, ANN, tokens=10)
            writer.receipts(0, row)
            writer.verdict(key, row)
    return keys


def row_of(writer: LedgerWriter, key: Identity) -> Validator:
    return fold(writer).validators[key.public_key]


def test_a_verdict_without_a_check_earns_nothing() -> None:
    writer = LedgerWriter()
    writer.receipts(0, receipt(0, ANN))
    writer.add(BOB, verdict_on(receipt(0, ANN)))
    assert row_of(writer, BOB).tokens == 0
    assert row_of(writer, BOB).passed_groups == 1
    writer.check(BOB, receipt(0, ANN), CheckOutcome.AGREED)
    writer.check(BOB, receipt(0, ANN), CheckOutcome.AGREED)
    assert row_of(writer, BOB).tokens == 100
    assert fold(writer).ignored == {"check_without_verdict": 1}


@pytest.mark.parametrize("nonsense", [{"outcome": 0}, {"outcome": 9}, {"tokens": -1}, {"validator": b""}])
def test_an_impossible_check_is_ignored_and_counted(nonsense: dict[str, Any]) -> None:
    writer = LedgerWriter()
    row = receipt(0, ANN)
    writer.receipts(0, row)
    writer.add(BOB, verdict_on(row))
    check = VerdictCheck(BOB.public_key, row.group, int(CheckOutcome.AGREED), 100)
    writer.add(writer.learner, VerdictChecks((msgspec.structs.replace(check, **nonsense),)))
    assert fold(writer).ignored == {"impossible_check": 1}
    assert row_of(writer, BOB).tokens == 0


def test_only_the_learner_signs_checks() -> None:
    writer = LedgerWriter()
    forged = writer.add(EVE, VerdictChecks(()))
    board = LedgerFold(run=writer.run, learner=writer.learner.public_key, parameters=1)
    with pytest.raises(RemoteProtocolError, match="learner did not sign"):
        board.follow(forged)


def test_a_failed_check_voids_what_is_in_escrow_and_no_more() -> None:
    writer = LedgerWriter()
    rows = [receipt(number, ANN, tokens=10 + number) for number in range(12)]
    writer.receipts(0, *rows)
    for row in rows[:-1]:
        writer.verdict(BOB, row)
    assert row_of(writer, BOB).tokens == sum(row.tokens for row in rows[:11])
    assert row_of(writer, BOB).escrow_tokens == sum(row.tokens for row in rows[3:11]), "the newest eight"
    writer.verdict(BOB, rows[11], CheckOutcome.FAILED)
    tally = row_of(writer, BOB)
    assert (tally.tokens, tally.escrow_tokens, tally.failed_checks) == (10 + 11 + 12, 0, 1)
    assert not tally.standing.is_known


def test_who_lies_in_one_of_eight_earns_nothing() -> None:
    writer = LedgerWriter()
    for number in range(80):
        row = receipt(number, ANN)
        writer.receipts(number, row)
        writer.verdict(BOB, row, CheckOutcome.FAILED if number % 8 == 7 else CheckOutcome.AGREED)
    assert row_of(writer, BOB).tokens == 0


def test_an_unclear_check_earns_and_costs_nothing() -> None:
    writer = LedgerWriter()
    first, second = receipt(0, ANN), receipt(1, ANN)
    writer.receipts(0, first, second)
    writer.verdict(BOB, first)
    before = row_of(writer, BOB)
    writer.verdict(BOB, second, CheckOutcome.UNCLEAR, passed=False)
    after = row_of(writer, BOB)
    assert (after.tokens, after.escrow, after.standing) == (before.tokens, before.escrow, before.standing)


@pytest.mark.parametrize("third_is_first", [True, False])
@pytest.mark.parametrize("overruled", [True, False])
def test_a_third_validator_decides_between_learner_and_validator(third_is_first: bool, overruled: bool) -> None:
    writer = LedgerWriter()
    (third,) = known(writer, "third")
    row = receipt(0, ANN)
    writer.receipts(0, row)
    side = CheckOutcome.CONTRADICTED if overruled else CheckOutcome.AGREED
    calls = [(EVE, CheckOutcome.CONTRADICTED), (third, side)]
    if third_is_first and not overruled:  # otherwise the third would be the one that contradicts first
        calls.reverse()
    writer.verdict(calls[0][0], row, calls[0][1], passed=calls[0][1] is CheckOutcome.AGREED)
    assert fold(writer).overruled_receipts == 0
    assert row_of(writer, calls[0][0]).tokens == (180 if calls[0][0] is third else 0)
    writer.verdict(calls[1][0], row, calls[1][1], passed=calls[1][1] is CheckOutcome.AGREED)
    state, tally = fold(writer), row_of(writer, EVE)
    assert state.overruled_receipts == overruled
    assert (tally.tokens, tally.upheld_disputes, tally.failed_checks) == ((100, 1, 0) if overruled else (0, 0, 1))
    assert row_of(writer, third).tokens == 180
    late = identity("late")
    writer.verdict(late, row, CheckOutcome.CONTRADICTED, passed=False)
    assert row_of(writer, late).tokens == (100 if overruled else 0), "the decision holds for verdicts that follow"
    assert fold(writer).overruled_receipts == overruled


def test_newcomers_parties_and_most_known_validators_decide_nothing() -> None:
    writer = LedgerWriter()
    row = receipt(0, ANN)
    keys = known(writer, *(f"known {n}" for n in range(6)))
    writer.receipts(0, row)
    writer.verdict(EVE, row, CheckOutcome.CONTRADICTED, passed=False)
    writer.verdict(BOB, row, CheckOutcome.CONTRADICTED, passed=False)
    assert fold(writer).overruled_receipts == 0, "a newcomer decides nothing"
    order = sorted(keys, key=lambda key: digest("p2prl/dispute-decider/v1", row.group, key.public_key))
    for key in order[3:]:
        writer.verdict(key, row, CheckOutcome.CONTRADICTED, passed=False)
    assert fold(writer).overruled_receipts == 0, "the hash has chosen the first three"
    writer.verdict(order[2], row)
    tallies = fold(writer).validators
    assert [tallies[key.public_key].failed_checks for key in (EVE, BOB, *order)] == [1, 1, 0, 0, 0, 1, 1, 1]


def test_credit_of_contributors_leaves_escrow_with_further_groups() -> None:
    writer = LedgerWriter()
    writer.receipts(0, *(receipt(number, ANN, tokens=100 + number) for number in range(40)))
    person = fold(writer).people[ANN.public_key]
    assert person.tokens == sum(range(100, 140))
    assert person.escrow_tokens == sum(range(108, 140)), "the newest 32 groups"
    rejected = {"state": int(ReceiptState.REJECTED), "tokens": 0, "completions": 0}
    writer.receipts(1, receipt(50, ANN, reason="seed_mismatch", **rejected))
    assert fold(writer).people[ANN.public_key].tokens == person.tokens, "an honest failure costs nothing"
    writer.receipts(1, receipt(51, ANN, reason="excluded", **rejected))
    after = fold(writer).people[ANN.public_key]
    assert (after.tokens, after.escrow_tokens, after.forfeited_tokens) == (
        sum(range(100, 108)),
        0,
        sum(range(108, 140)),
    )
