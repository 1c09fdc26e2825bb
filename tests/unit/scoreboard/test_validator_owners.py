"""Validators and owners: one row for a person, no pay and no say on the person's own groups, whatever comes when."""

from __future__ import annotations

from collections import Counter, deque
from itertools import count

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from p2prl.protocol.delegation import DAY_MS, Delegation, Revocation, sign_delegation, sign_revocation
from p2prl.protocol.identity import Identity
from p2prl.protocol.ledger_messages import CheckOutcome, Receipt, VerdictCheck
from p2prl.protocol.ownership import Ownership
from p2prl.protocol.team_membership import Teams
from p2prl.scoreboard.documents.ranked_leaderboard import leaderboard_document
from p2prl.scoreboard.ledger.escrow import ESCROW_VERDICTS
from p2prl.scoreboard.ledger.ledger_fold import BoardState, LedgerFold
from p2prl.scoreboard.ledger.receipt_totals import CountedGroup
from p2prl.scoreboard.ledger.validator_shares import merged
from p2prl.scoreboard.ledger.verdict_totals import VerdictTotals
from p2prl_lab.testing.sample_ledgers import START_S, LedgerWriter, MemorySource, identity, receipt, verdict_on

ANN, ATTIC, CELLAR, BOB, EVE = (identity(name) for name in ("ann", "attic", "cellar", "bob", "eve"))
START_MS = int(START_S * 1000)
_KEYS = [key.public_key for key in (ANN, ATTIC, CELLAR, BOB)]


def fold(writer: LedgerWriter) -> BoardState:
    board = LedgerFold(run=writer.run, learner=writer.learner.public_key, parameters=1)
    for raw in writer.entries:
        board.follow(raw)
    return board.state()


def delegation(machine: Identity, *, owner: Identity = ANN, serial: int = 1) -> Delegation:
    return sign_delegation(
        owner, machine.public_key, serial=START_MS + serial, expires_ms=START_MS + 30 * DAY_MS, not_before_ms=0
    )


def judged(writer: LedgerWriter, number: int, sampler: Identity, validator: Identity) -> Receipt:
    row = receipt(number, sampler)
    writer.receipts(0, row)
    writer.verdict(validator, row)
    return row


def test_validators_of_one_owner_share_a_row() -> None:
    writer = LedgerWriter()
    judged(writer, 0, BOB, ATTIC)
    judged(writer, 1, BOB, CELLAR)
    writer.add(ATTIC, delegation(ATTIC))
    writer.add(CELLAR, delegation(CELLAR))
    state = fold(writer)
    assert set(state.validators) == {ANN.public_key}
    assert state.validators[ANN.public_key].tokens == 200
    assert state.validators[ANN.public_key].escrow_tokens == 200
    assert set(state.validator_machines[ANN.public_key]) == {ATTIC.public_key, CELLAR.public_key}
    page = leaderboard_document(MemorySource(writer).snapshot(), by="validators", limit=9, query=CELLAR.peer_id)
    (row,) = page.validators
    assert (row.id, row.machine_count, row.rechecked_tokens) == (ANN.peer_id, 2, 200)
    assert row.machines == sorted([ATTIC.peer_id, CELLAR.peer_id])


def test_a_verdict_on_the_owners_own_group_earns_nothing_before_and_after_the_delegation() -> None:
    for late in (False, True):
        writer = LedgerWriter()
        if not late:
            writer.add(ATTIC, delegation(ATTIC))
        judged(writer, 0, ANN, ATTIC)
        judged(writer, 1, BOB, ATTIC)
        if late:
            writer.add(ATTIC, delegation(ATTIC))
        row = fold(writer).validators[ANN.public_key]
        assert (row.tokens, row.passed_groups, row.escrow_tokens) == (100, 2, 100)


def test_what_was_earned_before_a_revocation_stays_with_the_owner() -> None:
    writer = LedgerWriter()
    writer.add(ATTIC, delegation(ATTIC))
    judged(writer, 0, BOB, ATTIC)
    writer.now += 3_600
    stolen_ms = START_MS + 1_800_000
    writer.add(ANN, sign_revocation(ANN, ATTIC.public_key, serial=START_MS + 9, from_ms=stolen_ms))
    writer.add(ATTIC, delegation(ATTIC, owner=EVE, serial=20))
    judged(writer, 1, BOB, ATTIC)
    state = fold(writer)
    assert {owner: row.tokens for owner, row in state.validators.items()} == {ANN.public_key: 100, EVE.public_key: 100}


def test_a_validator_of_the_samplers_owner_decides_nothing() -> None:
    for delegated in (False, True):
        writer = LedgerWriter()
        if delegated:
            writer.add(ATTIC, delegation(ATTIC))
        for number in range(100, 108):  # the decider is known by its checks
            judged(writer, number, BOB, ATTIC)
        row = receipt(0, ANN)
        writer.receipts(0, row)
        writer.verdict(EVE, row, CheckOutcome.CONTRADICTED, passed=False)
        writer.verdict(ATTIC, row, CheckOutcome.CONTRADICTED, passed=False)
        assert fold(writer).overruled_receipts == (0 if delegated else 1)


_at = st.integers(0, 30)
_pairs = st.tuples(st.sampled_from(_KEYS), st.sampled_from(_KEYS)).filter(lambda pair: pair[0] != pair[1])
_checks = st.tuples(_pairs, _at, st.sampled_from([CheckOutcome.AGREED, CheckOutcome.FAILED]), st.integers(1, 9))
_statements = st.one_of(
    st.builds(
        lambda pair, serial, begin, length: Delegation(pair[0], pair[1], serial, begin, begin + length, b"", b""),
        _pairs, st.integers(1, 9), st.integers(0, 25), st.integers(1, 20),
    ),
    st.builds(
        lambda pair, serial, at: Revocation(pair[0], pair[1], serial, at, b""),
        _pairs, st.integers(1, 9), st.integers(0, 25),
    ),
)  # fmt: skip


@given(st.lists(st.one_of(_checks, _statements), max_size=30))
def test_any_history_pays_each_verdict_by_the_owners_of_its_time(history: list[object]) -> None:
    groups: dict[bytes, CountedGroup] = {}
    ownership, final, numbers = Ownership(), Ownership(), count()
    totals = VerdictTotals(groups, ownership, Teams(ownership))
    earned: dict[bytes, deque[tuple[int, bytes, int]]] = {}
    kept: list[tuple[bytes, int, bytes, int]] = []
    for event in history:
        if isinstance(event, tuple):
            (validator, sampler), at_ms, outcome, tokens = event
            row = msgspec.structs.replace(receipt(next(numbers), BOB, tokens=tokens), peer=sampler)
            groups[row.group] = CountedGroup(sampler, row.version, tokens, credited=True)
            totals.add(validator, at_ms, verdict_on(row))
            totals.add_check(VerdictCheck(validator, row.group, int(outcome), tokens), at_ms)
            mine = earned.setdefault(validator, deque())
            if outcome is CheckOutcome.FAILED:
                mine.clear()
                continue
            mine.append((at_ms, sampler, tokens))
            if len(mine) > ESCROW_VERDICTS:
                kept.append((validator, *mine.popleft()))
        else:
            for each in (ownership, final):
                rule = each.delegate(event) if isinstance(event, Delegation) else each.revoke(event)  # type: ignore[arg-type]
            if rule is None:
                totals.on_statement(event.delegate)  # type: ignore[attr-defined]
    kept += [(validator, *rest) for validator, mine in earned.items() for rest in mine]
    expected: Counter[tuple[bytes, bytes]] = Counter()
    for validator, at_ms, sampler, tokens in kept:
        owner = final.owner_at(validator, at_ms)
        expected[owner, validator] += 0 if owner == final.owner_at(sampler, at_ms) else tokens
    rows = totals.by_owner()
    found = Counter({(owner, machine): part.tokens for owner, parts in rows.items() for machine, part in parts.items()})
    assert +found == +expected
    assert all(tokens >= 0 for tokens in found.values())
    for owner, parts in rows.items():
        whole = merged(parts)
        assert whole.tokens == sum(part.tokens for part in parts.values()), owner
        assert 0 <= whole.escrow_tokens <= whole.tokens
    for machine, total in totals.validators.items():
        assert total.tokens == sum(parts[machine].tokens for parts in rows.values() if machine in parts)
        assert total.failed_checks == sum(parts[machine].failed_checks for parts in rows.values() if machine in parts)
