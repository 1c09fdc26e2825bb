"""Teams on the board: sums under any history, windows, pages and documents, and no pay for auditing one's own team."""

from __future__ import annotations

from collections import Counter, deque
from itertools import count
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.errors import RemoteProtocolError
from p2prl.protocol.delegation import DAY_MS, Delegation, Revocation, sign_delegation
from p2prl.protocol.identity import Identity
from p2prl.protocol.ledger_messages import CheckOutcome, ReceiptState, VerdictCheck
from p2prl.protocol.membership_statements import Membership, TeamName, parse_invite, sign_membership, sign_team_name
from p2prl.protocol.ownership import Ownership
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.team_membership import Teams
from p2prl.scoreboard.documents.ranked_leaderboard import contributor_document, leaderboard_document
from p2prl.scoreboard.documents.team_view import team_document, teams_document
from p2prl.scoreboard.ledger.escrow import ESCROW_GROUPS, ESCROW_VERDICTS
from p2prl.scoreboard.ledger.hourly_totals import HOUR_MS, team_and_owner
from p2prl.scoreboard.ledger.ledger_fold import BoardState, LedgerFold, team_totals
from p2prl.scoreboard.ledger.owner_totals import CREDITED, CountedReceipt, OwnerTotals, reason_place
from p2prl.scoreboard.ledger.receipt_totals import CountedGroup
from p2prl.scoreboard.ledger.verdict_totals import VerdictTotals
from p2prl_lab.testing.sample_ledgers import START_S, LedgerWriter, MemorySource, identity, receipt, verdict_on

ANN, ATTIC, BOB, EVE, RED, BLUE = (identity(name) for name in ("ann", "attic", "bob", "eve", "red", "blue"))
START_MS = int(START_S * 1000)
_MEMBERS = (ANN, ATTIC, BOB)
_KEYS = [key.public_key for key in _MEMBERS]


def named(team: Identity = RED, name: str = "Red Pandas", serial: int = 1) -> TeamName:
    return sign_team_name(team, name, serial=serial)


def fold(writer: LedgerWriter) -> BoardState:
    board = LedgerFold(run=writer.run, learner=writer.learner.public_key, parameters=1)
    for raw in writer.entries:
        board.follow(raw)
    return board.state()


def delegated(writer: LedgerWriter, machine: Identity, owner: Identity) -> None:
    term = sign_delegation(owner, machine.public_key, serial=START_MS, expires_ms=START_MS + 30 * DAY_MS)
    writer.add(machine, term)


def joined(writer: LedgerWriter, member: Identity, team: TeamName | None, serial: int, sender: str = "") -> None:
    """A membership enters the ledger, and time passes."""
    writer.add(identity(sender) if sender else member, sign_membership(member, team, serial=serial))
    writer.now += 10


# --- sums -----------------------------------------------------------------------------------------------------------


class Delivered(NamedTuple):
    """A receipt of a machine: credited, rejected with exclusion, or expired."""

    machine: bytes
    state: ReceiptState


class Joined(NamedTuple):
    member: bytes
    team: bytes | None

    def statement(self, at: int) -> Membership:
        """Unsigned: the tables take checked statements."""
        name = None if self.team is None else TeamName(self.team, "x", 1, b"")
        return Membership(self.member, at + 1, name, b"")


class Checked(NamedTuple):
    """A verdict that the learner's check confirmed."""

    pair: tuple[bytes, bytes]
    tokens: int


_pairs = st.tuples(st.sampled_from(_KEYS), st.sampled_from(_KEYS)).filter(lambda pair: pair[0] != pair[1])
_states = st.sampled_from([ReceiptState.VERIFIED, ReceiptState.REJECTED, ReceiptState.EXPIRED])
_receipts = st.builds(Delivered, st.sampled_from(_KEYS), _states)
_joins = st.builds(Joined, st.sampled_from(_KEYS), st.sampled_from([None, RED.public_key, BLUE.public_key]))
_owners = st.builds(
    lambda pair, serial, begin, length: Delegation(pair[0], pair[1], serial, begin, begin + length, b"", b""),
    _pairs, st.integers(1, 9), st.integers(0, 25), st.integers(1, 40),
)  # fmt: skip
_ends = st.builds(
    lambda pair, serial, at: Revocation(pair[0], pair[1], serial, at, b""),
    _pairs,
    st.integers(1, 9),
    st.integers(0, 40),
)


@given(st.lists(st.one_of(_receipts, _receipts, _joins, _owners, _ends), max_size=30))
def test_any_history_sums_to_the_owners_and_each_team_to_its_members(
    history: list[Delivered | Joined | Delegation | Revocation],
) -> None:
    totals, log = OwnerTotals(), []
    stays: dict[bytes, list[tuple[int, bytes | None]]] = {key: [(-1, None)] for key in _KEYS}
    for at, event in enumerate(history):
        if isinstance(event, (Delegation, Revocation)):
            totals.take(event)
        elif isinstance(event, Joined):
            if totals.teams.take(event.statement(at), event.member, after_ms=at) is None:
                stays[event.member].append((at, event.team))
        else:
            tokens = 7 + at if event.state in CREDITED else 0
            reason = reason_place(RejectionReason.EXCLUDED if event.state is ReceiptState.REJECTED else "")
            row = CountedReceipt(at, at, int(event.state), reason, 8 if tokens else 0, tokens, 0)
            totals.add(event.machine, row, bytes(32))
            log.append((event.machine, at, event.state, tokens))
    expected: Counter[tuple[bytes, bytes, str]] = Counter()
    escrow: dict[tuple[bytes, bytes], deque[tuple[bytes, int]]] = {}
    for key, at, state, tokens in log:
        owner = totals.ownership.owner_at(key, at)
        mine = escrow.setdefault((owner, key), deque(maxlen=ESCROW_GROUPS))
        if state is ReceiptState.REJECTED:
            while mine:
                in_team, lost = mine.popleft()
                expected[in_team, owner, "tokens"] -= lost
        elif state is ReceiptState.VERIFIED:
            in_team = next(team for since, team in reversed(stays[owner]) if since < at) or b""
            mine.append((in_team, tokens))
            expected[in_team, owner, "tokens"] += tokens
            expected[in_team, owner, "groups"] += 1
    found: Counter[tuple[bytes, bytes, str]] = Counter()
    teams = team_totals(totals.teams, totals.hours.team_work)
    for key, team in teams.items():
        for owner, work in team.work.items():
            found[key, owner, "tokens"], found[key, owner, "groups"] = work
        assert team.tokens == sum(work.tokens for work in team.work.values())
        assert team.groups == sum(work.groups for work in team.work.values())
    assert +found == +Counter({place: number for place, number in expected.items() if place[0]})
    for owner, person in totals.people.items():
        assert person.tokens == sum(expected[key, owner, "tokens"] for key in (b"", *teams))
        assert person.credited_groups == sum(expected[key, owner, "groups"] for key in (b"", *teams))
    by_hour: Counter[tuple[bytes, bytes, str]] = Counter()
    for rows in totals.hours.team_state().values():
        for name, work in rows.items():
            by_hour[*team_and_owner(name), "tokens"] += work.tokens
            by_hour[*team_and_owner(name), "groups"] += work.groups
    assert +by_hour == +found


def test_joining_counts_from_the_next_signature_and_moving_takes_nothing_along() -> None:
    writer = LedgerWriter()
    writer.receipts(0, receipt(0, ANN))
    joined(writer, ANN, named(), 1)
    writer.receipts(1, receipt(1, ANN), receipt(2, BOB))
    joined(writer, ANN, named(BLUE, "Blue"), 2)
    writer.receipts(2, receipt(3, ANN, tokens=50))
    joined(writer, ANN, None, 3)
    writer.receipts(3, receipt(4, ANN))
    state = fold(writer)
    assert {team.name.name: (team.tokens, team.groups, len(team.members)) for team in state.teams.values()} == {
        "Red Pandas": (100, 1, 0),
        "Blue": (50, 1, 0),
    }
    assert state.people[ANN.public_key].tokens == 350


def test_a_delegation_that_comes_late_brings_the_work_of_its_time() -> None:
    writer = LedgerWriter()
    writer.receipts(0, receipt(0, ATTIC))
    joined(writer, ANN, named(), 1)
    writer.receipts(1, receipt(1, ATTIC))
    assert fold(writer).teams[RED.public_key].tokens == 0
    delegated(writer, ATTIC, ANN)
    assert fold(writer).teams[RED.public_key].tokens == 100


def test_a_membership_that_says_nothing_or_comes_from_a_stranger_is_ignored_and_counted() -> None:
    writer = LedgerWriter()
    joined(writer, ANN, named(), 1, sender="eve")
    delegated(writer, ATTIC, ANN)
    joined(writer, ANN, named(), 1, sender="attic")
    joined(writer, ANN, named(), 1, sender="attic")
    state = fold(writer)
    assert state.ignored == {"membership_of_another": 1, "second_membership": 1}
    assert state.teams[RED.public_key].members == {ANN.public_key}


@pytest.mark.parametrize("damage", ["member", "team"])
def test_a_forged_membership_breaks_the_chain(damage: str) -> None:
    writer = LedgerWriter()
    membership = sign_membership(ANN, named(), serial=1)
    if damage == "member":
        forged = msgspec.structs.replace(membership, member=BOB.public_key)
    else:
        unsigned = msgspec.structs.replace(named(), name="Blue")
        forged = msgspec.structs.replace(membership, team=unsigned)
    writer.add(BOB, forged)
    with pytest.raises(RemoteProtocolError, match=f"not signed by its {damage}"):
        fold(writer)


# --- pay ------------------------------------------------------------------------------------------------------------


def judged(writer: LedgerWriter, number: int, sampler: Identity, validator: Identity) -> None:
    row = receipt(number, sampler)
    writer.receipts(number, row)
    writer.verdict(validator, row)


def test_auditing_ones_own_team_earns_nothing_while_it_is_ones_own() -> None:
    writer = LedgerWriter()
    judged(writer, 0, BOB, EVE)
    joined(writer, BOB, named(), 1)
    joined(writer, EVE, named(), 1)
    judged(writer, 1, BOB, EVE)
    judged(writer, 2, ANN, EVE)
    joined(writer, EVE, named(BLUE), 2)
    judged(writer, 3, BOB, EVE)
    row = fold(writer).validators[EVE.public_key]
    assert (row.tokens, row.passed_groups, row.escrow_tokens) == (300, 4, 300)


def test_a_delegation_into_the_team_that_comes_late_takes_the_pay_back() -> None:
    for late in (False, True):
        writer = LedgerWriter()
        joined(writer, ANN, named(), 1)
        joined(writer, EVE, named(), 1)
        if not late:
            delegated(writer, ATTIC, ANN)
        judged(writer, 0, ATTIC, EVE)
        judged(writer, 1, BOB, ATTIC)
        judged(writer, 2, EVE, ATTIC)
        if late:
            delegated(writer, ATTIC, ANN)
        state = fold(writer)
        assert state.validators[EVE.public_key].tokens == 0
        assert state.validators[ANN.public_key].tokens == 100


def test_a_validator_of_the_samplers_team_decides_nothing() -> None:
    for allied in (False, True):
        writer = LedgerWriter()
        joined(writer, ATTIC, named(), 1)
        joined(writer, ANN, named() if allied else named(BLUE), 1)
        for number in range(100, 108):  # the decider is known by its checks
            judged(writer, number, BOB, ATTIC)
        row = receipt(0, ANN)
        writer.receipts(0, row)
        writer.verdict(EVE, row, CheckOutcome.CONTRADICTED, passed=False)
        writer.verdict(ATTIC, row, CheckOutcome.CONTRADICTED, passed=False)
        assert fold(writer).overruled_receipts == (0 if allied else 1)


_checks = st.builds(Checked, _pairs, st.integers(1, 9))


@given(st.lists(st.one_of(_checks, _checks, _joins, _owners, _ends), max_size=25))
def test_any_history_pays_each_verdict_by_owners_and_teams_of_its_time(
    history: list[Checked | Joined | Delegation | Revocation],
) -> None:
    groups: dict[bytes, CountedGroup] = {}
    ownership, numbers = Ownership(), count()
    teams = Teams(ownership)
    totals, kept = VerdictTotals(groups, ownership, teams), []
    for at, event in enumerate(history):
        if isinstance(event, (Delegation, Revocation)):
            rule = ownership.delegate(event) if isinstance(event, Delegation) else ownership.revoke(event)
            if rule is None:
                totals.on_statement(event.delegate)
        elif isinstance(event, Joined):
            teams.take(event.statement(at), event.member, after_ms=at)
        else:
            validator, sampler = event.pair
            row = msgspec.structs.replace(receipt(next(numbers), BOB, tokens=event.tokens), peer=sampler)
            groups[row.group] = CountedGroup(sampler, row.version, event.tokens, credited=True)
            totals.add(validator, at, verdict_on(row))
            totals.add_check(VerdictCheck(validator, row.group, int(CheckOutcome.AGREED), event.tokens), at)
            kept.append((validator, sampler, at, event.tokens))
    expected: Counter[bytes] = Counter()
    for validator, sampler, at, tokens in kept:
        owners = [ownership.owner_at(key, at) for key in (validator, sampler)]
        mine = [teams.team_at(owner, at) for owner in owners]
        shared = owners[0] == owners[1] or (mine[0] is not None and mine[0] == mine[1])
        expected[validator] += 0 if shared else tokens
    assert Counter({key: each.tokens for key, each in totals.validators.items()}) == expected
    for key, each in totals.validators.items():
        assert len(each.escrow) == min(ESCROW_VERDICTS, sum(validator == key for validator, *_ in kept))


# --- documents ------------------------------------------------------------------------------------------------------


def two_teams() -> LedgerWriter:
    """Red has ann with a machine, and bob until he left; blue has eve. The last receipts are two days later."""
    writer = LedgerWriter()
    delegated(writer, ATTIC, ANN)
    for member, team in ((ANN, named()), (BOB, named()), (EVE, named(BLUE, "Blue"))):
        joined(writer, member, team, 1)
    writer.receipts(0, receipt(0, ANN), receipt(1, ATTIC), receipt(2, BOB), receipt(3, EVE, tokens=30))
    writer.now += 2 * DAY_MS / 1000
    joined(writer, BOB, None, 2)
    joined(writer, EVE, named(BLUE, "Blue Pandas", serial=2), 2)
    writer.receipts(1, receipt(4, BOB), receipt(5, EVE, tokens=30))
    return writer


def test_documents_of_teams() -> None:
    snapshot = MemorySource(two_teams()).snapshot()
    page = teams_document(snapshot, limit=9)
    assert [(row.rank, row.name, row.members, row.verified_tokens, row.groups) for row in page.teams] == [
        (1, "Red Pandas", 1, 300, 3),
        (2, "Blue Pandas", 1, 60, 2),
    ]
    (today,) = teams_document(snapshot, limit=9, window="today").teams
    assert (today.name, today.window_tokens, today.window_groups, today.verified_tokens) == ("Blue Pandas", 30, 1, 60)
    assert [row.window_tokens for row in teams_document(snapshot, limit=9, window="7d").teams] == [300, 60]
    first = teams_document(snapshot, limit=1)
    second = teams_document(snapshot, limit=1, cursor=first.next_cursor)
    assert [first.teams, second.teams] == [page.teams[:1], page.teams[1:]]
    assert (first.total, second.next_cursor) == (2, None)
    for query, found in (
        ("blue", [BLUE.peer_id]),
        ("pandas", [RED.peer_id, BLUE.peer_id]),
        (RED.peer_id[-6:], [RED.peer_id]),
    ):
        assert [row.id for row in teams_document(snapshot, limit=9, query=query).teams] == found
    red = team_document(snapshot, RED.peer_id)
    assert red is not None
    assert parse_invite(red.invite).name == "Red Pandas"
    assert [(row.id, row.is_member, row.verified_tokens, row.share) for row in red.members] == [
        (ANN.peer_id, True, 200, 0.666667),
        (BOB.peer_id, False, 100, 0.333333),
    ]
    assert (red.share, sum(red.activity.tokens), max(red.activity.contributors)) == (round(300 / 460, 6), 300, 2)
    assert team_document(snapshot, ANN.peer_id) is None
    assert team_document(snapshot, "nonsense") is None
    people = {row.id: (row.team, row.team_id) for row in leaderboard_document(snapshot, by="people", limit=9).people}
    assert people == {
        ANN.peer_id: ("Red Pandas", RED.peer_id),
        BOB.peer_id: ("", None),
        EVE.peer_id: ("Blue Pandas", BLUE.peer_id),
    }
    machine = contributor_document(snapshot, ATTIC.peer_id)
    assert machine is not None
    assert machine.team == "Red Pandas"


def test_the_hours_of_a_team_are_those_of_its_receipts() -> None:
    state = fold(two_teams())
    hours = {hour: sum(work.tokens for work in rows.values()) for hour, rows in state.team_hours.items()}
    first = START_MS // HOUR_MS
    assert hours == {first: 330, first + 48: 30}
