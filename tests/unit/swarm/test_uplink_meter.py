"""Upload budget: the bucket's rate, the measured uplink, bytes per month."""

from __future__ import annotations

import calendar

import pytest

from p2prl.protocol.identity import PeerId
from p2prl.swarm.relay.uplink_meter import MonthlyBudget, TokenBucket, UplinkMeter

PEERS = [PeerId(name) for name in "ABCD"]


def test_bucket_rate_and_burst() -> None:
    bucket, now, left = TokenBucket(100_000.0, 0.0), 0.0, 0
    while now < 10.0:
        now += bucket.wait_s(now)
        bucket.take(1_000, now)
        left += 1_000
    assert 1_000_000 <= left <= 1_000_000 + 16 * 1024 + 1_000


def test_control_messages_overdraw_the_bucket() -> None:
    bucket = TokenBucket(1_000.0, 0.0)
    bucket.take(5_000, 0.0)
    assert bucket.wait_s(0.0) == pytest.approx(5.0)
    bucket.take(2_000, 1.0)
    assert bucket.wait_s(1.0) == pytest.approx(6.0)
    assert bucket.wait_s(7.0) == 0.0


def test_rate_0_is_no_limit() -> None:
    bucket = TokenBucket(0.0, 0.0)
    bucket.take(10**12, 0.0)
    assert bucket.wait_s(0.0) == 0.0


def feed(meter: UplinkMeter, peers: list[PeerId], *, rate: float, chunks: int, idle_s: float = 0.0) -> float:
    """Chunks of 1 MB, one after the other with pauses; returns the time."""
    now = 0.0
    for number in range(chunks):
        meter.sending(now)
        now += 1e6 / rate
        meter.sent(peers[number % len(peers)], 1_000_000, now)
        now += idle_s
    return now


def test_uplink_measurement_ignores_idle_time() -> None:
    meter = UplinkMeter()
    feed(meter, PEERS, rate=2e6, chunks=30, idle_s=3.0)
    assert meter.measured_bytes_s == pytest.approx(2e6, rel=0.01)
    assert not meter.wants_probe(100.0)
    assert meter.wants_probe(10_000.0), "evenings are slower than nights"


def shared(meter: UplinkMeter, *, rate: float, chunks: int, now: float) -> float:
    """Four chunks of 1 MB under way at once, to four peers in turn, over a line of that rate; returns the time."""
    for _ in range(4):
        meter.sending(now)
    for number in range(chunks):
        now += 1e6 / rate
        meter.sent(PEERS[number % 4], 1_000_000, now)
        meter.sending(now)
    for number in range(4):
        meter.sent(PEERS[number], 1_000_000, now + (number + 1) * 1e6 / rate)
    return now + 4e6 / rate


def test_what_peers_wanted_does_not_cap_a_line_for_long() -> None:
    """100 Mbit/s, of which slow receivers took 1 at first."""
    meter = UplinkMeter()
    now = feed(meter, PEERS, rate=125_000.0, chunks=10)
    assert meter.measured_bytes_s == pytest.approx(125_000.0, rel=0.01)
    now += 30.0
    assert meter.wants_probe(now)
    now = shared(meter, rate=12.5e6, chunks=40, now=now)
    assert meter.measured_bytes_s == pytest.approx(12.5e6, rel=0.35)
    # Demand that falls again does not make the line slow.
    for _ in range(5):
        now += 60.0
        for number in range(12):
            meter.sending(now)
            now += 8.0
            meter.sent(PEERS[number % 4], 1_000_000, now)
    assert meter.measured_bytes_s == pytest.approx(12.5e6, rel=0.35)


def test_a_confirmed_line_is_measured_ever_less_often() -> None:
    meter, now, waits = UplinkMeter(), 0.0, []
    for _ in range(9):
        now = shared(meter, rate=2e6, chunks=12, now=now)
        wait_s = 1.0
        while not meter.wants_probe(now + wait_s):
            wait_s += 1.0
        waits.append(wait_s)
        now += wait_s
    assert waits == sorted(waits)
    assert waits[0] <= 31
    assert 1_700 <= waits[-1] <= 1_800
    shared(meter, rate=1e6, chunks=12, now=now)
    assert meter.measured_bytes_s == pytest.approx(1e6, rel=0.35), "a busy line that became slower"


def test_one_receiver_does_not_measure_the_uplink() -> None:
    meter = UplinkMeter()
    feed(meter, PEERS[:1], rate=1e5, chunks=100)
    assert meter.measured_bytes_s == 0.0


def at(year: int, month: int, day: int) -> float:
    return float(calendar.timegm((year, month, day, 12, 0, 0)))


def test_a_new_month_resets_the_budget() -> None:
    budget = MonthlyBudget(1_000)
    budget.spend(999, at(2026, 11, 21))
    assert not budget.is_spent(at(2026, 11, 30))
    budget.spend(1, at(2026, 11, 30))
    assert budget.is_spent(at(2026, 11, 30))
    assert not budget.is_spent(at(2026, 12, 1))
    assert budget.spent_bytes == 0


def test_a_clock_set_back_grants_no_second_budget() -> None:
    budget = MonthlyBudget(1_000)
    budget.spend(1_000, at(2026, 11, 21))
    assert budget.is_spent(at(2026, 10, 1))


def test_no_limit_still_counts_bytes() -> None:
    budget = MonthlyBudget(0)
    budget.spend(10**15, at(2026, 11, 21))
    assert not budget.is_spent(at(2026, 11, 21))
    assert budget.spent_bytes == 10**15
