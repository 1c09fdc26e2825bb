"""The clock estimate: bounds by round trips, weights, a quorum."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.swarm.peers.clock_estimate import QUORUM, PeerClock, Reading, Vote, clock_error_s
from p2prl.swarm.peers.subnets import Subnet

NOW = 1_800_000_000.0


@given(st.floats(-1000, 1000), st.floats(0, 60), st.floats(0, 60), st.floats(0, 100))
def test_the_true_offset_is_within_the_bounds(offset: float, there: float, held: float, back: float) -> None:
    ours, theirs = PeerClock(), PeerClock()
    ours.sent(NOW)
    theirs.heard(int(NOW * 1000), 0, 0, NOW + there + offset)
    sent = NOW + there + held
    echo_ms, held_ms = theirs.sent(sent + offset)
    ours.heard(int((sent + offset) * 1000), echo_ms, held_ms, sent + back)
    readings = [ours.reading] if ours.reading is not None else []
    assert readings or there + back < 0.01, "only whole milliseconds are sent"
    for reading in readings:
        assert reading.lowest - 0.003 <= offset <= reading.highest + 0.003
        assert reading.round_trip_s == pytest.approx(there + back, abs=0.01)


def test_only_echoes_of_own_recent_hellos_count() -> None:
    clock = PeerClock()
    assert clock.sent(NOW) == (0, 0)
    for echo_ms, held_ms in ((0, 0), (int(NOW * 1000) + 1, 0), (int(NOW * 1000), -1)):
        clock.heard(int(NOW * 1000) + 90_000, echo_ms, held_ms, NOW + 1)
        assert _reading(clock) is None
    clock.heard(int(NOW * 1000) + 100, int(NOW * 1000), 10**9, NOW + 1)
    assert _reading(clock) is None, "it claims to have held the hello longer than it was away"
    clock.heard(int(NOW * 1000) + 100, int(NOW * 1000), 50, NOW + 1)
    first = _reading(clock)
    assert first is not None
    for later in range(1, 9):
        clock.sent(NOW + later)
    clock.heard(int(NOW * 1000) + 100, int(NOW * 1000), 99, NOW + 9)
    assert _reading(clock) == first, "that hello is forgotten"
    assert clock.sent(NOW + 10) == (int(NOW * 1000) + 100, 1000)


def test_the_smallest_round_trip_wins_for_a_quarter_of_an_hour() -> None:
    clock = PeerClock()

    def read(at: float, trip: float) -> None:
        clock.sent(at)
        clock.heard(int((at + trip / 2) * 1000), int(at * 1000), 0, at + trip)

    read(NOW, 0.2)
    read(NOW + 100, 5.0)
    assert clock.reading is not None
    assert clock.reading.round_trip_s == pytest.approx(0.2, abs=0.002)
    read(NOW + 200, 0.1)
    assert clock.reading.round_trip_s == pytest.approx(0.1, abs=0.002)
    read(NOW + 1200, 5.0)
    assert clock.reading.round_trip_s == pytest.approx(5.0, abs=0.002)


def vote(offset: float, subnet: str = "a", *, trip: float = 0.2, known: bool = False, learner: bool = False) -> Vote:
    return Vote(Reading(offset - trip / 2, offset + trip / 2, NOW), Subnet(subnet), known, learner)


def error_of(*votes: Vote) -> float | None:
    return clock_error_s(votes, tolerance_s=30.0)


def test_a_quorum_decides() -> None:
    assert error_of() is None
    assert error_of(*(vote(99, "one subnet") for _ in range(1000))) is None
    assert error_of(*(vote(99, str(index)) for index in range(QUORUM - 1))) is None
    assert error_of(*(vote(99, str(index)) for index in range(QUORUM))) == pytest.approx(99)
    assert error_of(vote(-99, learner=True)) == pytest.approx(-99)
    assert error_of(vote(99, known=True)) is None
    assert error_of(vote(99, known=True), vote(99, known=True)) == pytest.approx(99)
    assert error_of(vote(29, learner=True)) is None
    assert error_of(vote(31, learner=True)) == pytest.approx(31)


def test_two_liars_move_no_clock() -> None:
    rng = random.Random(5)
    liars = [vote(3600, "x"), vote(3600, "y")]
    assert error_of(*liars, vote(0.1, learner=True)) is None
    assert error_of(*liars, *(vote(rng.uniform(-1, 1), str(index)) for index in range(2))) is None
    assert error_of(*liars, *(vote(rng.uniform(-1, 1), str(index)) for index in range(3))) is None
    assert error_of(*liars, vote(0.3, "z"), vote(100, learner=True)) == pytest.approx(100), "nor hide a wrong one"


def test_a_reading_that_fits_a_right_clock_proves_nothing() -> None:
    assert error_of(vote(50, learner=True, trip=41)) is None
    assert error_of(vote(50, learner=True, trip=39)) == pytest.approx(50)
    assert error_of(vote(-50, learner=True, trip=41)) is None


def _reading(clock: PeerClock) -> Reading | None:
    return clock.reading
