"""Ledger fold: against an independent recount, rule by rule, and with receipts and verdicts in any order."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2prl.errors import IntegrityError, RemoteProtocolError
from p2prl.protocol.envelope import open_envelope
from p2prl.protocol.ledger_messages import Receipts, ReceiptState, Verdict, VerdictChecks
from p2prl.scoreboard.ledger.ledger_fold import BoardState, LedgerFold
from p2prl_lab.testing.sample_ledgers import (
    LedgerWriter,
    identity,
    manifest,
    receipt,
    sample_run,
    verdict_on,
)

ANN, BOB, EVE = identity("ann"), identity("bob"), identity("eve")


def fold(writer: LedgerWriter) -> BoardState:
    board = LedgerFold(run=writer.run, learner=writer.learner.public_key, parameters=writer.manifest.parameters)
    for raw in writer.entries:
        board.follow(raw)
    return board.state()


def recount(writer: LedgerWriter) -> dict[str, Any]:
    """The same sums the naive way: all receipts first, then all verdicts."""
    bodies = [open_envelope(raw, now=None) for raw in writer.envelopes]
    final: dict[bytes, Any] = {}
    step_of: dict[bytes, int] = {}
    for opened in bodies:
        if isinstance(opened.body, Receipts):
            for row in opened.body.receipts:
                if row.group not in final:
                    final[row.group], step_of[row.group] = row, opened.body.step
    tokens: Counter[bytes] = Counter()
    groups: Counter[tuple[bytes, str]] = Counter()
    curve: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for group, row in final.items():
        good = row.state in (1, 2)
        groups[row.peer, "good" if good else f"{row.state}/{row.reason}"] += 1
        if good:
            tokens[row.peer] += row.tokens
            curve[step_of[group]].append((row.reward, row.completions))
    checks = {
        (check.validator, check.group): check
        for opened in bodies
        if isinstance(opened.body, VerdictChecks)
        for check in opened.body.checks
    }
    checked: dict[bytes, dict[bytes, tuple[bool, int]]] = defaultdict(dict)
    for opened in bodies:
        if isinstance(opened.body, Verdict) and opened.body.group in final:
            row = final[opened.body.group]
            if opened.author != row.peer:
                paid = min(opened.body.tokens, checks[opened.author, row.group].tokens)
                checked[opened.author].setdefault(row.group, (opened.body.passed, paid))
    return {
        "tokens": dict(tokens),
        "groups": groups,
        "curve": {s: sum(r * n for r, n in rows) / sum(n for _, n in rows) for s, rows in curve.items()},
        "checked": {v: (sum(p for p, _ in r.values()), sum(t for _, t in r.values())) for v, r in checked.items()},
    }


@pytest.mark.parametrize("seed", range(3))
def test_the_fold_equals_an_independent_recount(seed: int) -> None:
    writer = sample_run(seed)
    state, oracle = fold(writer), recount(writer)
    assert {key: p.tokens for key, p in state.people.items() if p.tokens} == oracle["tokens"]
    for key, person in state.people.items():
        assert person.credited_groups == oracle["groups"][key, "good"]
        for reason, count in person.rejected.items():
            assert count == oracle["groups"][key, f"3/{reason}"]
        for reason, count in person.expired.items():
            assert count == oracle["groups"][key, f"4/{reason}"]
    assert sum(p.credited_groups + p.rejected_groups + p.expired_groups for p in state.people.values()) == 600
    assert set(oracle["curve"]) == {step for step, tally in state.steps.items() if tally.groups}
    for step, mean in oracle["curve"].items():
        assert state.steps[step].mean_reward() == pytest.approx(mean, abs=1e-6)
    found = {key: (v.passed_groups, v.tokens) for key, v in state.validators.items()}
    assert found == oracle["checked"]
    assert (state.height, state.head) == (len(writer.entries), writer.head)


def test_credit_is_petaflop_of_checked_forward_work() -> None:
    writer = LedgerWriter(manifest(parameters=7_000_000_000))
    writer.receipts(0, receipt(0, ANN, tokens=1_000_000))
    state = fold(writer)
    assert state.credit(state.people[ANN.public_key].tokens) == pytest.approx(14.0)


def test_the_first_receipt_of_a_group_counts() -> None:
    writer = LedgerWriter()
    writer.receipts(3, receipt(0, ANN))
    writer.receipts(4, receipt(0, ANN, tokens=9_999), receipt(0, BOB))
    state = fold(writer)
    assert {key: p.tokens for key, p in state.people.items()} == {ANN.public_key: 100}
    assert state.ignored == {"second_receipt": 2}
    assert set(state.steps) == {3}


def test_a_validator_counts_once_per_group_and_not_for_its_own_work() -> None:
    writer = LedgerWriter()
    row = receipt(0, ANN)
    writer.receipts(0, row)
    for _ in range(3):
        writer.now += 1
        writer.verdict(BOB, row)
    writer.verdict(ANN, row)
    state = fold(writer)
    assert set(state.validators) == {BOB.public_key}
    assert state.validators[BOB.public_key].tokens == 100
    assert state.ignored == {"second_verdict": 2, "check_without_verdict": 3, "verdict_on_own_work": 1}


def test_a_validators_claim_earns_no_more_than_the_check_states() -> None:
    writer = LedgerWriter()
    row = receipt(0, ANN, tokens=100)
    writer.receipts(0, row)
    writer.verdict(EVE, row, tokens=2_000_000)
    writer.verdict(BOB, row, tokens=40)
    state = fold(writer)
    assert state.validators[EVE.public_key].tokens == 100
    assert state.validators[BOB.public_key].tokens == 40


def test_a_verdict_without_a_receipt_waits_and_earns_nothing() -> None:
    writer = LedgerWriter()
    writer.add(BOB, verdict_on(receipt(0, ANN)))
    state = fold(writer)
    assert not state.validators
    assert state.waiting_verdicts == 1
    writer.receipts(0, receipt(0, ANN))
    state = fold(writer)
    assert state.validators[BOB.public_key].passed_groups == 1
    assert state.waiting_verdicts == 0


@pytest.mark.parametrize("lie", [{"peer": EVE.public_key}, {"version": 7}])
def test_a_verdict_must_name_the_receipts_group(lie: dict[str, Any]) -> None:
    writer = LedgerWriter()
    writer.receipts(0, receipt(0, ANN))
    writer.add(BOB, verdict_on(receipt(0, ANN), **lie))
    state = fold(writer)
    assert not state.validators
    assert state.ignored == {"verdict_on_another_group": 1}


def test_a_failed_verdict_against_the_learner_is_a_dispute() -> None:
    writer = LedgerWriter()
    good, bad = receipt(0, ANN), receipt(1, ANN, state=int(ReceiptState.REJECTED), reason="seed_mismatch", tokens=0)
    writer.receipts(0, good, bad)
    writer.add(BOB, verdict_on(good, passed=False))
    writer.add(BOB, verdict_on(bad, passed=False))
    tally = fold(writer).validators[BOB.public_key]
    assert (tally.failed_groups, tally.disputed_groups) == (2, 1)


def test_rejected_and_expired_groups_earn_nothing() -> None:
    writer = LedgerWriter()
    writer.receipts(
        0,
        receipt(0, ANN, state=int(ReceiptState.REJECTED), reason="seed_mismatch", tokens=500),
        receipt(1, ANN, state=int(ReceiptState.EXPIRED), reason="too_stale", tokens=500),
        receipt(2, ANN, state=int(ReceiptState.CREDITED_BY_SAMPLING)),
    )
    person = fold(writer).people[ANN.public_key]
    assert (person.tokens, person.verified_groups, person.sampled_groups) == (100, 0, 1)
    assert (person.rejected, person.expired) == ({"seed_mismatch": 1}, {"too_stale": 1})


def test_an_unknown_reason_is_not_repeated() -> None:
    writer = LedgerWriter()
    writer.receipts(0, receipt(0, ANN, state=int(ReceiptState.REJECTED), reason="<script>alert(1)</script>"))
    assert fold(writer).people[ANN.public_key].rejected == {"other": 1}


@pytest.mark.parametrize(
    "nonsense",
    [
        {"tokens": -1},
        {"tokens": 1 << 40},
        {"completions": 65},
        {"completions": -3},
        {"reward": float("nan")},
        {"reward": float("inf")},
        {"reward": 1e300},
        {"state": 0},
        {"state": 9},
        {"peer": b"short"},
        {"group": b""},
        {"version": -1},
        {"version": 1 << 60},
    ],
)
def test_an_impossible_receipt_is_ignored_and_counted(nonsense: dict[str, Any]) -> None:
    writer = LedgerWriter()
    writer.receipts(0, msgspec.structs.replace(receipt(0, ANN), **nonsense), receipt(1, BOB))
    state = fold(writer)
    assert set(state.people) == {BOB.public_key}
    assert state.ignored == {"impossible_receipt": 1}


@pytest.mark.parametrize("step", [-1, 1 << 60])
def test_receipts_of_an_impossible_step_are_ignored(step: int) -> None:
    writer = LedgerWriter()
    writer.receipts(step, receipt(0, ANN))
    assert fold(writer).ignored == {"impossible_receipt": 1}


@pytest.mark.parametrize("nonsense", [{"tokens": -1}, {"tokens": 1 << 40}, {"group": b"x"}])
def test_an_impossible_verdict_is_ignored_and_counted(nonsense: dict[str, Any]) -> None:
    writer = LedgerWriter()
    writer.receipts(0, receipt(0, ANN))
    writer.add(BOB, verdict_on(receipt(0, ANN), **nonsense))
    state = fold(writer)
    assert not state.validators
    assert state.ignored == {"impossible_verdict": 1}


def test_a_broken_chain_is_refused_and_changes_nothing() -> None:
    writer = sample_run(0, steps=4)
    board = LedgerFold(run=writer.run, learner=writer.learner.public_key, parameters=1)
    board.follow(writer.entries[0])
    before = board.state()
    with pytest.raises(IntegrityError):
        board.follow(writer.entries[2])
    with pytest.raises(IntegrityError):
        board.follow(writer.entries[0])
    flipped = bytearray(writer.entries[1])
    flipped[-1] ^= 1
    with pytest.raises(RemoteProtocolError):
        board.follow(bytes(flipped))
    assert board.state() == before
    board.follow(writer.entries[1])


def test_only_the_learner_signs_receipts() -> None:
    writer = LedgerWriter()
    forged = writer.add(EVE, Receipts(0, (receipt(0, EVE),)))
    board = LedgerFold(run=writer.run, learner=writer.learner.public_key, parameters=1)
    with pytest.raises(RemoteProtocolError, match="learner did not sign"):
        board.follow(forged)
    assert board.height == 0


def test_states_are_immutable() -> None:
    writer = sample_run(0, steps=6)
    board = LedgerFold(run=writer.run, learner=writer.learner.public_key, parameters=1)
    states = []
    for raw in writer.entries:
        board.follow(raw)
        states.append((board.state(), sum(p.tokens for p in board.state().people.values())))
    assert [sum(p.tokens for p in state.people.values()) for state, _ in states] == [total for _, total in states]
    assert len({total for _, total in states}) > 3


_ROWS = [
    receipt(i, (ANN, BOB, EVE)[i % 3], tokens=50 + i, reward=i / 7, version=i % 2, state=1 + (i % 4)) for i in range(9)
]
_VERDICTS = [(judge, row) for row in _ROWS[:6] for judge in (ANN, BOB, identity("validator a"))]


@settings(max_examples=25, deadline=None)
@given(order=st.permutations(range(len(_ROWS) + len(_VERDICTS))), cut=st.integers(0, 9))
def test_any_order_of_receipts_and_verdicts_gives_the_same_totals(order: list[int], cut: int) -> None:
    def totals(places: list[int]) -> dict[str, Any]:
        writer = LedgerWriter()
        for place in places:
            if place < len(_ROWS):
                writer.receipts(place // 3, _ROWS[place])
            else:
                judge, row = _VERDICTS[place - len(_ROWS)]
                writer.add(judge, verdict_on(row, passed=row.slot % 2 == 0))
        state = fold(writer)
        people = {key: replace(person, escrow=tuple(sorted(person.escrow))) for key, person in state.people.items()}
        return {"people": people, "validators": dict(state.validators), "steps": dict(state.steps)} | {
            "ignored": dict(state.ignored),
            "waiting": state.waiting_verdicts,
        }

    assert totals(order) == totals(sorted(order))
