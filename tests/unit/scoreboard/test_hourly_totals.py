"""Work by hour: equal to the rows' sums under exclusions and changes of owner, and windows equal to a plain recount."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.protocol.delegation import Delegation
from p2prl.protocol.ledger_messages import ReceiptState
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.scoreboard.documents.ranked_leaderboard import leaderboard_document
from p2prl.scoreboard.documents.work_over_time import MAX_COLUMNS, MIN_COLUMNS, activity_document, owner_activity
from p2prl.scoreboard.ledger.hourly_totals import HOUR_MS
from p2prl.scoreboard.ledger.owner_totals import CountedReceipt, OwnerTotals, reason_place
from p2prl_lab.testing.sample_ledgers import START_S, LedgerWriter, MemorySource, identity, receipt

ANN, BOB, CAT = identity("ann"), identity("bob"), identity("cat")
_KEYS = [bytes([number]) * 32 for number in range(3)]
_events = st.one_of(
    st.builds(
        lambda key, hour, state, tokens: (
            key,
            CountedReceipt(
                sent_ms=hour * HOUR_MS + 7,
                step=hour,
                state=int(state),
                reason=reason_place(RejectionReason.EXCLUDED),
                completions=1,
                tokens=tokens if state <= 2 else 0,
                reward_micros=0,
            ),
        ),
        st.sampled_from(_KEYS),
        st.integers(0, 60),
        st.sampled_from(list(ReceiptState)),
        st.integers(1, 9),
    ),
    st.builds(
        lambda owner, machine, serial, begin: Delegation(
            owner, machine, serial, begin * HOUR_MS, (begin + 20) * HOUR_MS, b"", b""
        ),
        st.just(_KEYS[0]),
        st.sampled_from(_KEYS[1:]),
        st.integers(1, 9),
        st.integers(0, 60),
    ),
)


@given(st.lists(_events, max_size=80))
def test_hours_sum_to_the_rows_whatever_is_forfeited_or_moved(
    history: list[tuple[bytes, CountedReceipt] | Delegation],
) -> None:
    totals = OwnerTotals()
    for event in history:
        if isinstance(event, tuple):
            totals.add(*event, bytes(32))
        else:
            totals.take(event)
        totals.hours.state()  # whatever was shown before
    hours = totals.hours.state()
    for owner, person in totals.people.items():
        assert sum(work[owner].tokens for work in hours.values() if owner in work) == person.tokens
        assert sum(work[owner].groups for work in hours.values() if owner in work) == person.credited_groups
    assert {owner for work in hours.values() for owner in work} <= set(totals.people)


def test_a_state_does_not_change_afterwards() -> None:
    totals = OwnerTotals()
    one = CountedReceipt(1, 0, int(ReceiptState.VERIFIED), 0, 1, 5, 0)
    totals.add(_KEYS[0], one, bytes(32))
    before = totals.hours.state()
    totals.add(_KEYS[0], one, bytes(32))
    assert before[0][_KEYS[0]] == (5, 1)
    assert totals.hours.state()[0][_KEYS[0]] == (10, 2)


def long_run() -> LedgerWriter:
    """Three people over ten days: ann each day, bob on the first, cat on the last two."""
    writer, number = LedgerWriter(), 0
    midnight = START_S - START_S % 86_400
    for day in range(10):
        for hour in (0, 23):
            writer.now = midnight + day * 86_400 + hour * 3_600
            who = [ANN, *([BOB] if day == 0 else []), *([CAT, CAT] if day > 7 else [])]
            rows = [receipt(number + i, person, tokens=10 + day) for i, person in enumerate(who)]
            number += len(rows)
            writer.receipts(2 * day + (hour > 0), *rows)
    return writer


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        ("all", {"cat": (4 + 4, 4 * 18 + 4 * 19), "ann": (20, 2 * sum(range(10, 20))), "bob": (2, 20)}),
        ("7d", {"ann": (14, 2 * sum(range(13, 20))), "cat": (8, 4 * 18 + 4 * 19)}),
        ("today", {"cat": (4, 76), "ann": (2, 38)}),
    ],
)
def test_a_window_counts_whole_days_up_to_the_newest_receipt(window: str, expected: dict[str, tuple[int, int]]) -> None:
    names = {ANN.peer_id: "ann", BOB.peer_id: "bob", CAT.peer_id: "cat"}
    snapshot = MemorySource(long_run()).snapshot()
    found = leaderboard_document(snapshot, by="people", limit=9, window=window)
    assert {names[row.id]: (row.window_groups, row.window_tokens) for row in found.people} == expected  # type: ignore[index]
    assert (found.window, found.total) == (window, len(expected))
    tokens = [row.window_tokens for row in found.people]
    assert tokens == sorted(tokens, reverse=True)
    assert [row.rank for row in found.people] == list(range(1, len(expected) + 1))
    first = leaderboard_document(snapshot, by="people", limit=1, window=window)
    rest = leaderboard_document(snapshot, by="people", limit=9, window=window, cursor=first.next_cursor)
    assert [*first.people, *rest.people] == found.people


def test_activity_is_by_day_without_gaps_and_sums_to_the_board() -> None:
    snapshot = MemorySource(long_run()).snapshot()
    activity = activity_document(snapshot, top=1)
    assert activity.unit == "day"
    days = [datetime.fromisoformat(start) for start in activity.start]
    assert all((later - day).days == 1 for day, later in pairwise(days))
    assert MIN_COLUMNS <= len(days) <= MAX_COLUMNS
    assert days[-1].replace(tzinfo=UTC) == days[-1]
    assert sum(activity.tokens) == leaderboard_total(snapshot)
    assert activity.tokens[-2:] == [2 * 18 + 4 * 18, 2 * 19 + 4 * 19]
    assert activity.contributors[-3:] == [1, 2, 2]
    (best,) = activity.top
    assert best.id == ANN.peer_id
    named = [some + other for some, other in zip(best.tokens, activity.other_tokens, strict=True)]
    assert named == activity.tokens
    assert snapshot.board is not None
    own = owner_activity(snapshot.board, CAT.public_key)
    assert own.start == activity.start
    assert own.tokens[-3:] == [0, 72, 76]


def test_a_short_run_is_by_hour() -> None:
    writer = LedgerWriter()
    for hour in range(3):
        writer.now = START_S + 3_600 * hour
        writer.receipts(hour, receipt(hour, ANN))
    activity = activity_document(MemorySource(writer).snapshot())
    assert activity.unit == "hour"
    assert activity.tokens == [0] * (MIN_COLUMNS - 3) + [100, 100, 100]
    assert activity_document(MemorySource(LedgerWriter()).snapshot()).start == []


def leaderboard_total(snapshot: object) -> int:
    return sum(10 + day for day in range(10) for _ in range(2)) + 20 + 4 * 18 + 4 * 19
