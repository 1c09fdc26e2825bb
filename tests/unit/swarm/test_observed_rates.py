"""Rates found while sending, and from the neighbors' announcements."""

from __future__ import annotations

import pytest

from p2prl.swarm.relay.observed_rates import DownlinkRate, Gains, SendRate

SIZE = 500_000


def line(rate: SendRate, *, bytes_s: float, chunks: int, window: int, now: float = 0.0, idle_s: float = 0.0) -> float:
    """Send chunks over a line of that rate with `window` of them under way; returns the time."""
    sent = min(window, chunks)
    for _ in range(sent):
        rate.began(now)
    for ended in range(chunks):
        now += SIZE / bytes_s
        rate.ended(SIZE, now)
        if sent < chunks:
            now += idle_s
            rate.began(now)
            sent += 1
        assert ended < sent
    return now


@pytest.mark.parametrize("bytes_s", [50_000.0, 1.25e6, 12.5e6])
def test_a_busy_line_is_measured(bytes_s: float) -> None:
    rate = SendRate()
    line(rate, bytes_s=bytes_s, chunks=60, window=4)
    assert rate.bytes_s == pytest.approx(bytes_s, rel=0.35)


def test_the_first_acknowledgement_is_a_first_estimate() -> None:
    rate = SendRate()
    rate.began(0.0)
    rate.ended(SIZE, 4.0)
    assert rate.bytes_s == SIZE / 4.0


def test_an_idle_sender_is_no_slow_one() -> None:
    """One chunk every ten seconds, half an hour long: that is what was wanted, and not what the line carries."""
    rate = SendRate()
    now = line(rate, bytes_s=12.5e6, chunks=60, window=6)
    known = rate.bytes_s
    line(rate, bytes_s=12.5e6, chunks=180, window=1, now=now, idle_s=10.0)
    assert rate.bytes_s >= known


def test_a_line_that_became_slower_is_measured_again() -> None:
    rate = SendRate()
    now = line(rate, bytes_s=12.5e6, chunks=60, window=6)
    line(rate, bytes_s=1.25e6, chunks=200, window=6, now=now)
    assert rate.bytes_s == pytest.approx(1.25e6, rel=0.35)


def test_failed_sends_add_nothing() -> None:
    rate = SendRate()
    for now in range(5):
        rate.began(float(now))
        rate.ended(0, now + 0.5)
    assert rate.bytes_s == 0.0


def test_gains_lately_and_since_the_beginning() -> None:
    gains = Gains()
    gains.begin(0.0)
    assert gains.rate(0.5) == gains.mean_rate(0.5) == 0.0, "too early"
    for second in range(20):
        gains.add(10, second + 0.5)
    assert gains.total == 200
    assert gains.rate(20.0) == pytest.approx(10.0, rel=0.2)
    assert gains.mean_rate(20.0) == pytest.approx(10.0)
    assert gains.rate(40.0) == 0.0
    assert gains.mean_rate(40.0) == pytest.approx(5.0)


def test_the_best_of_the_last_samples_is_the_downlink() -> None:
    rate = DownlinkRate()
    for tenth in range(200):  # 5 MB/s for ten seconds, then 1 MB/s
        rate.take(SIZE if tenth < 100 else SIZE // 5, tenth / 10)
        assert rate.bytes_s == (0.0 if tenth < 20 else pytest.approx(5e6))
    for tenth in range(200, 320):
        rate.take(SIZE // 5, tenth / 10)
    assert rate.bytes_s == pytest.approx(1e6)
