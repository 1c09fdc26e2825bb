"""Totals by owner: the sum of the receipts under any history of delegations and revocations, row by row."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.errors import RemoteProtocolError
from p2prl.protocol.delegation import DAY_MS, Delegation, Revocation, sign_delegation, sign_revocation
from p2prl.protocol.identity import Identity
from p2prl.protocol.ledger_messages import ReceiptState
from p2prl.protocol.ownership import Ownership
from p2prl.scoreboard.documents.ranked_leaderboard import contributor_document, leaderboard_document
from p2prl.scoreboard.ledger.ledger_fold import BoardState, LedgerFold
from p2prl.scoreboard.ledger.owner_totals import CountedReceipt, OwnerTotals, reason_place
from p2prl.scoreboard.web.page import PageRequest, render_page
from p2prl_lab.testing.sample_ledgers import START_S, LedgerWriter, MemorySource, identity, receipt

ANN, BOB, ATTIC, CELLAR = (identity(name) for name in ("ann", "bob", "attic", "cellar"))
START_MS = int(START_S * 1000)
_KEYS = [key.public_key for key in (ANN, BOB, ATTIC, CELLAR)]


def fold(writer: LedgerWriter) -> BoardState:
    board = LedgerFold(run=writer.run, learner=writer.learner.public_key, parameters=1)
    for raw in writer.entries:
        board.follow(raw)
    return board.state()


def delegation(owner: Identity = ANN, machine: Identity = ATTIC, *, serial: int = 1) -> Delegation:
    return sign_delegation(
        owner, machine.public_key, serial=START_MS + serial, expires_ms=START_MS + 30 * DAY_MS, not_before_ms=0
    )


def tokens(state: BoardState) -> dict[bytes, int]:
    return {owner: person.tokens for owner, person in state.people.items()}


def take(ownership: Ownership, statement: Delegation | Revocation) -> None:
    if isinstance(statement, Delegation):
        ownership.delegate(statement)
    else:
        ownership.revoke(statement)


_receipts = st.builds(
    lambda key, at, state, count: (
        _KEYS[key],
        CountedReceipt(
            sent_ms=at,
            step=at // 3,
            state=int(state),
            reason=reason_place("seed_mismatch"),
            completions=count if state <= 2 else 0,
            tokens=count * 7 if state <= 2 else 0,
            reward_micros=count * 11 if state <= 2 else 0,
        ),
    ),
    st.integers(0, 3),
    st.integers(0, 30),
    st.sampled_from(list(ReceiptState)),
    st.integers(1, 9),
)
_pairs = st.tuples(st.sampled_from(_KEYS), st.sampled_from(_KEYS)).filter(lambda pair: pair[0] != pair[1])
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


@given(st.lists(st.one_of(_receipts, _statements), max_size=25))
def test_any_history_sums_to_its_receipts_and_each_row_to_its_owners(
    history: list[tuple[bytes, CountedReceipt] | Delegation | Revocation],
) -> None:
    totals, ownership = OwnerTotals(), Ownership()
    for event in history:
        if isinstance(event, tuple):
            totals.add(*event, bytes(32))
        else:
            totals.take(event)
            take(ownership, event)
    expected: Counter[tuple[bytes, bytes, str]] = Counter()
    for event in history:
        if isinstance(event, tuple):
            machine, row = event
            place = ownership.owner_at(machine, row.sent_ms), machine
            for figure in ("tokens", "completions", "reward_micros"):
                expected[*place, figure] += getattr(row, figure)
            expected[*place, ReceiptState(row.state).name] += 1
    found: Counter[tuple[bytes, bytes, str]] = Counter()
    for owner, machines in totals.machines.items():
        for machine, person in machines.items():
            for figure in ("tokens", "completions", "reward_micros"):
                found[owner, machine, figure] += getattr(person, figure)
            found[owner, machine, "VERIFIED"] += person.verified_groups
            found[owner, machine, "CREDITED_BY_SAMPLING"] += person.sampled_groups
            found[owner, machine, "REJECTED"] += person.rejected_groups
            found[owner, machine, "EXPIRED"] += person.expired_groups
    assert +found == +expected
    assert set(totals.people) == set(totals.machines)
    for owner, person in totals.people.items():
        parts = totals.machines[owner].values()
        assert person.tokens == sum(part.tokens for part in parts)
        assert person.credited_groups == sum(part.credited_groups for part in parts)
        assert person.rejected_groups == sum(part.rejected_groups for part in parts)
        assert person.expired_groups == sum(part.expired_groups for part in parts)
        assert person.first_step == min(part.first_step for part in parts)
        assert person.last_ms == max(part.last_ms for part in parts)
        hours = [work[owner] for work in totals.hours.state().values() if owner in work]
        assert sum(work.tokens for work in hours) == person.tokens
        assert sum(work.groups for work in hours) == person.credited_groups


def test_three_machines_are_one_row_whenever_the_delegation_comes() -> None:
    writer = LedgerWriter()
    writer.receipts(0, receipt(0, ANN), receipt(1, ATTIC), receipt(2, CELLAR), receipt(3, BOB))
    writer.add(ATTIC, delegation())
    writer.add(CELLAR, delegation(machine=CELLAR))
    writer.receipts(1, receipt(4, ATTIC))
    state = fold(writer)
    assert tokens(state) == {ANN.public_key: 400, BOB.public_key: 100}
    assert {key: person.tokens for key, person in state.machines[ANN.public_key].items()} == {
        ANN.public_key: 100,
        ATTIC.public_key: 200,
        CELLAR.public_key: 100,
    }


def test_work_after_a_revocations_time_is_the_machines_own_even_if_receipted_before_it_came() -> None:
    writer = LedgerWriter()
    writer.add(ATTIC, delegation())
    for step in range(4):
        writer.receipts(step, receipt(step, ATTIC))
        writer.now += 10
    writer.add(BOB, sign_revocation(ANN, ATTIC.public_key, serial=START_MS + 9, from_ms=START_MS + 20_000))
    state = fold(writer)
    assert tokens(state) == {ANN.public_key: 200, ATTIC.public_key: 200}
    writer.add(ATTIC, delegation(serial=5))
    assert tokens(fold(writer)) == tokens(state), "an older delegation does not come back"


def test_a_delegation_that_its_machine_did_not_send_breaks_the_chain() -> None:
    writer = LedgerWriter()
    writer.add(ANN, delegation())
    with pytest.raises(RemoteProtocolError, match="not sent by the machine"):
        fold(writer)


def test_a_statement_that_says_nothing_new_is_ignored_and_counted() -> None:
    writer = LedgerWriter()
    writer.add(ATTIC, delegation())
    writer.add(ATTIC, delegation())
    writer.add(BOB, sign_revocation(ANN, CELLAR.public_key, serial=1, from_ms=0))
    assert fold(writer).ignored == {"second_delegation": 1, "revocation_of_nothing": 1}


# --- documents ------------------------------------------------------------------------------------------------------


def one_owner_of(machines: int) -> MemorySource:
    """A run in which ann owns this many machines besides her own key, and bob works alone."""
    writer = LedgerWriter()
    keys = [identity(f"machine {index}") for index in range(machines)]
    rows = [receipt(index, key, tokens=10 + index) for index, key in enumerate((ANN, BOB, *keys))]
    writer.receipts(0, *rows)
    for key in keys:
        writer.add(key, delegation(machine=key))
    return MemorySource(writer)


def test_a_row_lists_its_machines_and_a_machine_leads_to_its_row() -> None:
    snapshot = one_owner_of(20).snapshot()
    people = leaderboard_document(snapshot, by="people", limit=9).people
    assert [row.id for row in people] == [ANN.peer_id, BOB.peer_id]
    assert [(row.machine_count, len(row.machines)) for row in people] == [(21, 16), (1, 0)]
    machine = identity("machine 3").peer_id
    for name in (ANN.peer_id, machine):
        whole = contributor_document(snapshot, name)
        assert whole is not None
        assert (whole.id, whole.rank, len(whole.machines)) == (ANN.peer_id, 1, 21)
        assert sum(part.verified_tokens for part in whole.machines) == whole.verified_tokens
        assert [part.credit for part in whole.machines] == sorted((m.credit for m in whole.machines), reverse=True)
    found = leaderboard_document(snapshot, by="people", limit=9, query=machine).people
    assert [row.id for row in found] == [ANN.peer_id]
    assert contributor_document(snapshot, CELLAR.peer_id) is None


def test_the_page_shows_the_machines_of_a_row() -> None:
    page = render_page(one_owner_of(18).snapshot(), PageRequest())
    assert "19 machines" in page
    assert "and 3 more" in page
    assert page.count("machines-12D3Koo") == 1
