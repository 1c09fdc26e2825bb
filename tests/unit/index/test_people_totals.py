"""Totals of people over runs: exact sums over the runs that count, ranks, and everything else apart."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.errors import ConfigError
from p2prl.index.people_documents import people_document, person_document
from p2prl.index.people_state import RECOUNT_S, PeopleState
from p2prl.index.people_totals import Contribution, PeopleTotals, RunPart, contributions, people_totals
from p2prl.protocol.delegation import DAY_MS, sign_delegation, sign_revocation
from p2prl.protocol.digests import Digest, digest
from p2prl.protocol.identity import peer_id_of
from p2prl.protocol.ledger_messages import ReceiptState
from p2prl.scoreboard.ledger.known_run import open_run_manifest
from p2prl.scoreboard.ledger.ledger_fold import BoardState
from p2prl_lab.testing.sample_ledgers import LedgerWriter, identity, manifest, receipt, sample_run

KEYS = [identity(name).public_key for name in ("ann", "bob", "cleo", "dan")]
OWNERS = [identity(name).peer_id for name in ("owner a", "owner b", "owner c")]
ANN = peer_id_of(KEYS[0])


def part(
    number: int, owner: int, people: dict[int, Contribution], *, parameters: int = 1_000, incident: str = ""
) -> RunPart:
    return RunPart(
        run=Digest(digest("run", bytes([number]))),
        name=f"run-{number}",
        owner=OWNERS[owner],
        parameters=parameters,
        height=9,
        is_finished=False,
        incident=incident,
        people={KEYS[who]: given for who, given in people.items()},
    )


_contributions = st.builds(
    Contribution,
    tokens=st.integers(0, 10**9),
    rechecked_tokens=st.integers(0, 10**6),
    groups=st.integers(0, 10**6),
    first_ms=st.none() | st.integers(0, 1 << 45),
    last_ms=st.none() | st.integers(0, 1 << 45),
)
_runs = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.dictionaries(st.integers(0, 3), _contributions, max_size=4),
        st.integers(1, 10**12),
        st.sampled_from(["", "", "", "two histories"]),
    ),
    max_size=6,
).map(
    lambda rows: [
        part(number, owner, people, parameters=parameters, incident=incident)
        for number, (owner, people, parameters, incident) in enumerate(rows)
    ]
)


@given(_runs, st.sets(st.integers(0, 2)), st.randoms())
def test_sums_and_ranks_are_those_of_a_recount_and_of_no_order(
    runs: list[RunPart], named: set[int], draw: Random
) -> None:
    owners = frozenset(OWNERS[each] for each in named)
    totals = people_totals(runs, owners)
    credited: dict[bytes, Fraction] = {}
    for who, key in enumerate(KEYS):
        given_to = [
            (run.parameters, run.people[key])
            for run in runs
            if run.owner in owners and run.incident == "" and key in run.people
        ]
        document = person_document(totals, peer_id_of(key))
        elsewhere = [run for run in runs if key in run.people and (run.owner not in owners or run.incident)]
        if not given_to and not elsewhere:
            assert document is None
            continue
        assert document is not None
        # In petaFLOP: two for each parameter and token.
        credited[key] = sum(
            (Fraction(2 * size * (each.tokens + each.rechecked_tokens), 10**15) for size, each in given_to), Fraction(0)
        )
        row = document.person
        assert row.credit == pytest.approx(float(credited[key]), rel=1e-12)
        assert (row.groups, row.tokens, row.rechecked_tokens, row.runs) == (
            sum(each.groups for _, each in given_to),
            sum(each.tokens for _, each in given_to),
            sum(each.rechecked_tokens for _, each in given_to),
            len(given_to),
        ), who
        firsts = [each.first_ms for _, each in given_to if each.first_ms is not None]
        assert totals.people.get(key, Contribution()).first_ms == (min(firsts) if firsts else None)
        assert (len(document.runs), len(document.other_runs)) == (len(given_to), len(elsewhere))
    in_order = sorted((key for key in credited if credited[key]), key=lambda key: (-credited[key], key))
    assert list(totals.ranked) == in_order
    assert {key: totals.ranks.get(key) for key in KEYS} == {
        key: in_order.index(key) + 1 if key in in_order else None for key in KEYS
    }
    shuffled = list(runs)
    draw.shuffle(shuffled)
    again = people_totals(shuffled, owners)
    assert (again.people, list(again.ranked)) == (totals.people, list(totals.ranked))


def test_a_fake_run_of_anybody_changes_no_sum_and_stands_apart() -> None:
    honest = part(0, 0, {0: Contribution(tokens=100, groups=2), 1: Contribution(tokens=70, groups=1)})
    fake = part(1, 1, {1: Contribution(tokens=10**15, groups=10**6)}, parameters=10**12)
    alone, both = people_totals([honest], frozenset(OWNERS[:1])), people_totals([honest, fake], frozenset(OWNERS[:1]))
    assert (alone.people, alone.ranked, alone.ranks) == (both.people, both.ranked, both.ranks)
    document = person_document(both, peer_id_of(KEYS[1]))
    assert document is not None
    assert (document.person.rank, document.person.tokens) == (2, 70)
    assert [(run.name, run.tokens) for run in document.other_runs] == [("run-1", 10**15)]
    assert "so could credit anybody with anything" in document.note
    nobody = people_totals([honest, fake], frozenset())
    assert nobody.ranked == ()
    assert "are nobody's" in people_document(nobody, limit=9).note


def test_a_run_whose_learner_signed_two_histories_counts_nowhere() -> None:
    runs = [
        part(0, 0, {0: Contribution(tokens=100)}),
        part(1, 0, {0: Contribution(tokens=5)}, incident="two histories"),
    ]
    document = person_document(people_totals(runs, frozenset(OWNERS)), ANN)
    assert document is not None
    assert (document.person.tokens, document.person.runs) == (100, 1)
    assert [(run.name, run.incident) for run in document.other_runs] == [("run-1", "two histories")]


def _board(writer: LedgerWriter) -> BoardState:
    fold = open_run_manifest(writer.manifest_raw).new_fold()
    for raw in writer.entries:
        fold.follow(raw)
    return fold.state()


def _counted(writers: Sequence[LedgerWriter]) -> PeopleTotals:
    parts = [
        RunPart(
            run=writer.run,
            name=writer.manifest.name,
            owner=writer.learner.peer_id,
            parameters=writer.manifest.parameters,
            height=len(writer.entries),
            is_finished=False,
            incident="",
            people=contributions(_board(writer)),
        )
        for writer in writers
    ]
    return people_totals(parts, frozenset({writers[0].learner.peer_id}))


def test_two_runs_add_up_to_what_their_boards_say_of_everybody() -> None:
    writers = [sample_run(1, steps=12), LedgerWriter(manifest(name="other", parameters=7))]
    extra = receipt(0, identity("volunteer 0"), tokens=1_000)
    writers[1].now += 9_000
    writers[1].receipts(0, extra)
    boards, totals = [_board(writer) for writer in writers], _counted(writers)
    for key in {*boards[0].people, *boards[0].validators}:
        person, validator = boards[0].people.get(key), boards[0].validators.get(key)
        expected = boards[0].credit((person.tokens if person else 0) + (validator.tokens if validator else 0)) + boards[
            1
        ].credit(1_000 if key == identity("volunteer 0").public_key else 0)
        assert totals.people[key].credit == pytest.approx(expected, rel=1e-12)
    both = totals.people[identity("volunteer 0").public_key]
    alone = boards[0].people[identity("volunteer 0").public_key]
    assert (both.runs, both.groups) == (2, alone.credited_groups + 1)
    assert (both.first_ms, both.last_ms) == (alone.first_ms, int(writers[1].now * 1000))


def test_a_revoked_machine_counts_for_its_owner_until_then_and_for_itself_afterwards() -> None:
    writer, owner, machine = LedgerWriter(), identity("ann"), identity("attic")
    start_ms = int(writer.now * 1000)
    delegation = sign_delegation(
        owner, machine.public_key, serial=start_ms, expires_ms=start_ms + 30 * DAY_MS, not_before_ms=0
    )
    writer.add(machine, delegation)
    writer.receipts(0, receipt(0, machine, tokens=100))
    writer.now += 100
    revoked_ms = int(writer.now * 1000)
    writer.add(owner, sign_revocation(owner, machine.public_key, serial=start_ms, from_ms=revoked_ms))
    writer.now += 100
    writer.receipts(1, receipt(1, machine, tokens=30))
    totals = _counted([writer])
    tokens = {key: person.tokens for key, person in totals.people.items()}
    assert tokens == {owner.public_key: 100, machine.public_key: 30}


def test_somebody_with_rejected_groups_alone_is_found_and_not_ranked() -> None:
    writer = LedgerWriter()
    writer.receipts(
        0,
        receipt(0, identity("ann"), state=int(ReceiptState.REJECTED), reason="seed_mismatch", tokens=0, completions=0),
    )
    totals = _counted([writer])
    document = person_document(totals, ANN)
    assert document is not None
    assert (document.person.rank, document.person.credit, document.person.runs) == (None, 0.0, 1)
    assert people_document(totals, limit=9).people == []


def test_pages_hold_everybody_once_in_order_and_a_search_finds_a_name() -> None:
    people = {
        0: Contribution(tokens=5),
        1: Contribution(tokens=9),
        2: Contribution(tokens=9),
        3: Contribution(tokens=1),
    }
    totals = people_totals([part(0, 0, people)], frozenset(OWNERS[:1]))
    seen, cursor = [], None
    while True:
        page = people_document(totals, limit=1, cursor=cursor)
        seen += [(row.rank, row.tokens) for row in page.people]
        assert page.total == 4
        if (cursor := page.next_cursor) is None:
            break
    assert seen == [(1, 9), (2, 9), (3, 5), (4, 1)]
    row = people_document(totals, limit=9).people[3]
    found = people_document(totals, limit=9, query=f" {row.handle.upper()} {row.id[-6:]} ")
    assert (found.total, found.people) == (1, [row])
    assert people_document(totals, limit=9, query="nobody").total == 0
    for wrong in ("x", "1-zzz", f"5-{'1' * 45}"):
        with pytest.raises(ConfigError, match="not issued by this API"):
            people_document(totals, limit=1, cursor=wrong)


def test_sums_are_made_anew_once_in_a_while_and_a_dropped_run_leaves_them() -> None:
    class _Clock:
        now_s = 100.0

        def now(self) -> float:
            return self.now_s

    clock = _Clock()
    state = PeopleState(clock, frozenset(OWNERS))
    assert state.totals().ranked == ()
    state.note(part(0, 0, {0: Contribution(tokens=1)}))
    assert len(state.totals().ranked) == 1
    state.note(part(1, 0, {1: Contribution(tokens=1)}))
    assert len(state.totals().ranked) == 1
    clock.now_s += RECOUNT_S
    assert len(state.totals().ranked) == 2
    state.drop(part(0, 0, {}).run)
    clock.now_s += RECOUNT_S
    assert list(state.totals().ranked) == [KEYS[1]]
