"""Verdicts a node passes on: none on groups that nobody has seen, and no flood of any number of keys."""

from __future__ import annotations

import pytest

from p2prl.protocol.digests import digest
from p2prl.protocol.envelope import Opened, open_envelope, seal
from p2prl.protocol.identity import Identity, PeerId
from p2prl.protocol.ledger_messages import (
    CheckOutcome,
    Receipt,
    Receipts,
    StorageReceipt,
    Verdict,
    VerdictCheck,
    VerdictChecks,
)
from p2prl.protocol.wire_codec import Wire
from p2prl.sim.machines import identity_of
from p2prl.swarm.gossip.verdict_gate import VerdictGate
from p2prl_lab.testing.protocol_swarm import group_of

NOW = 1.8e9
LEARNER, ANN, BOB = identity_of("learner"), identity_of("ann"), identity_of("bob")
SOURCE, OTHER = PeerId("A"), PeerId("B")


def said(body: Wire, by: Identity) -> Opened:
    return open_envelope(seal(by, body, run=bytes(32), now=NOW), now=None)


def name(number: int) -> bytes:
    return digest("g", number.to_bytes(4, "big"))


def verdict(number: int, by: Identity = ANN) -> Opened:
    return said(Verdict(name(number), bytes(32), 0, True, "", 8, 0, 0.0), by)


def stored(*numbers: int) -> Opened:
    return said(StorageReceipt(tuple(map(name, numbers))), LEARNER)


def checks(by: Identity, count: int, outcome: CheckOutcome = CheckOutcome.AGREED) -> Opened:
    check = VerdictCheck(by.public_key, name(0), int(outcome), 8)
    return said(VerdictChecks((check,) * count), LEARNER)


def test_groups_become_known_by_passing_or_by_the_learners_word() -> None:
    gate = VerdictGate()
    group = said(group_of(3), ANN)
    gate.note(group)
    gate.note(stored(1))
    gate.note(said(Receipts(0, (Receipt(name(2), bytes(32), 0, 0, 1, "", 8, 1, 0.0),)), LEARNER))
    on_group = said(Verdict(group.digest, bytes(32), 0, True, "", 8, 0, 0.0), BOB)
    assert [gate.admits(each, SOURCE, NOW) for each in (verdict(1), verdict(2), on_group)] == [True] * 3
    assert not gate.admits(verdict(9), SOURCE, NOW)


def test_a_verdict_that_overtook_its_group_is_passed_on_once() -> None:
    gate = VerdictGate()
    early, other = verdict(1), verdict(2)
    assert not gate.admits(early, SOURCE, NOW)
    assert not gate.admits(other, OTHER, NOW)
    assert gate.take_released() == []
    gate.note(stored(1))
    assert gate.take_released() == [(early, SOURCE)]
    gate.note(stored(1))
    assert gate.take_released() == []
    assert gate.held == 1


@pytest.mark.parametrize("keys", [1, 3_000])
def test_verdicts_on_unknown_groups_take_bounded_room(keys: int) -> None:
    gate = VerdictGate()
    gate.note(checks(BOB, 8))
    assert not gate.admits(verdict(5_000, BOB), SOURCE, NOW)
    strangers = [identity_of(f"stranger {n}") for n in range(min(keys, 24))]
    for number in range(3_000):
        signer = strangers[number % len(strangers)]
        assert not gate.admits(verdict(number, signer), SOURCE, NOW + number)
    assert gate.held <= (1 + 64 if keys == 1 else 1_024)
    gate.note(stored(5_000))
    assert len(gate.take_released()) == 1, "strangers made way for each other, not the known one"


def test_rates_bound_one_validator_and_all_newcomers_but_not_the_known() -> None:
    gate = VerdictGate()
    gate.note(stored(0))
    gate.note(checks(BOB, 8))
    admitted = sum(gate.admits(verdict(0, ANN), SOURCE, NOW) for _ in range(400))
    assert admitted == 256
    strangers = [identity_of(f"stranger {n}") for n in range(12)]
    flood = sum(gate.admits(verdict(0, key), SOURCE, NOW) for key in strangers for _ in range(200))
    assert flood == 1_024 - 256
    assert sum(gate.admits(verdict(0, BOB), SOURCE, NOW) for _ in range(200)) == 200
    assert gate.admits(verdict(0, strangers[0]), SOURCE, NOW + 1), "a newcomer has a turn a second later"
    gate.note(checks(BOB, 2, CheckOutcome.FAILED))
    assert sum(gate.admits(verdict(0, key), SOURCE, NOW + 1) for key in strangers for _ in range(50)) == 63
    assert not gate.admits(verdict(0, BOB), SOURCE, NOW + 1), "a validator that failed is a newcomer again"


@pytest.mark.parametrize("is_known", [True, False])
def test_old_verdicts_that_anybody_repeats_leave_a_validator_its_rate(is_known: bool) -> None:
    gate = VerdictGate()
    gate.note(stored(0, 1))
    if is_known:
        gate.note(checks(ANN, 8))
    now = NOW + 3_600
    assert sum(gate.admits(verdict(0), SOURCE, now) for _ in range(2_000)) == 256
    for key in (identity_of(f"stranger {number}") for number in range(4)):
        for _ in range(256):
            gate.admits(verdict(0, key), SOURCE, now)
    fresh = open_envelope(seal(ANN, verdict(1).body, run=bytes(32), now=now - 60), now=None)
    assert gate.admits(fresh, OTHER, now)
