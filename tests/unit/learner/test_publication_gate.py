"""The gate: nothing that a standby learner lacks leaves while it keeps step, in order and once, under seeded faults."""

from __future__ import annotations

import random

import pytest

from p2prl.learner.following.publication_gate import MOST_HELD_S, SILENT_S, START_WAIT_S, PublicationGate


def test_without_a_standby_everything_leaves_at_once() -> None:
    gate: PublicationGate[int] = PublicationGate(0.0)
    assert all(gate.passes(number, copy=number, now=0.0) for number in range(3))
    assert not gate.is_left_behind(1e9)


def test_a_message_waits_for_the_copy_that_contains_it() -> None:
    gate: PublicationGate[str] = PublicationGate(0.0)
    assert gate.confirm(1, 0.0, next_copy=2) == []
    assert not gate.keeps_step
    assert gate.passes("in copy 1", copy=1, now=0.0)
    assert not gate.passes("in copy 2", copy=2, now=0.0)
    assert not gate.passes("in copy 1, but later", copy=1, now=0.0)
    assert gate.confirm(1, 1.0, next_copy=2) == []
    assert gate.confirm(2, 2.0, next_copy=3) == ["in copy 2", "in copy 1, but later"]
    assert gate.keeps_step


@pytest.mark.parametrize("asks", [False, True])
def test_a_standby_that_is_silent_or_slow_is_left_behind(asks: bool) -> None:
    gate: PublicationGate[str] = PublicationGate(0.0)
    gate.confirm(1, 0.0, next_copy=2)
    gate.passes("a", copy=2, now=0.0)
    limit = MOST_HELD_S if asks else SILENT_S
    for now in range(int(limit) + 1):
        if asks:
            gate.asked(float(now))
        assert not gate.is_left_behind(float(now))
    assert gate.is_left_behind(limit + 1.0)
    assert gate.open() == ["a"]
    assert gate.passes("b", copy=3, now=limit + 1.0)


def test_a_learner_that_had_a_standby_waits_at_its_start() -> None:
    gate: PublicationGate[str] = PublicationGate(100.0, wait_s=START_WAIT_S)
    assert not gate.passes("a", copy=7, now=100.0)
    assert not gate.is_left_behind(100.0 + START_WAIT_S)
    assert gate.is_left_behind(101.0 + START_WAIT_S)


@pytest.mark.parametrize("seed", range(50))
def test_no_message_leaves_before_its_copy_is_held(seed: int) -> None:
    """An oracle beside the gate: what the standby holds, and which messages have left. The standby disappears at
    random; what leaves then leaves only after `is_left_behind` has said so."""
    rng = random.Random(seed)
    gate: PublicationGate[tuple[int, int]] = PublicationGate(0.0)
    now, taken, held, alone = 0.0, 0, 0, True
    sent: list[tuple[int, int]] = []
    for number in range(400):
        now += rng.expovariate(0.2)
        if rng.random() < 0.3:
            taken += 1
        if rng.random() < 0.3 and taken > held:
            held, alone = rng.randint(held + 1, taken), False
            sent += gate.confirm(held, now, next_copy=taken + 1)
        if gate.is_left_behind(now):
            alone = True
            sent += gate.open()
        message = (number, taken + 1)
        if gate.passes(message, copy=taken + 1, now=now):
            sent.append(message)
        assert alone or all(copy <= held for _, copy in sent[-1:] if _ == number)
        assert gate.holds is not alone
    assert [number for number, _ in sent] == sorted({number for number, _ in sent}), "in order, each once"
    assert len(sent) + gate.held == 400
