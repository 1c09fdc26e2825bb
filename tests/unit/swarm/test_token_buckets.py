"""Token buckets by key: rate, burst, memory."""

from __future__ import annotations

import random

from p2prl.swarm.token_buckets import KeyedBuckets, Rate


def test_a_burst_then_the_rate() -> None:
    buckets = KeyedBuckets(Rate(per_s=2.0, burst=3.0), capacity=4)
    assert [buckets.take("a", 0.0) for _ in range(4)] == [True, True, True, False]
    assert buckets.take("b", 0.0), "another key has its own"
    assert not buckets.take("a", 0.4)
    assert buckets.take("a", 0.5)
    assert not buckets.take("a", 0.5)
    assert not buckets.take("a", -100.0), "a clock that goes back adds nothing"
    assert buckets.level("a", 900.0) == 3.0
    assert not buckets.take("a", 900.0, 3.5)
    assert buckets.take("a", 900.0, 3.0)


def test_no_history_gives_more_than_burst_and_rate() -> None:
    rng = random.Random(3)
    rate = Rate(per_s=5.0, burst=10.0)
    buckets = KeyedBuckets(rate, capacity=2)
    times = sorted(rng.uniform(0, 20) for _ in range(2000))
    granted = [at for at in times if buckets.take("key", at)]
    for begin in granted:
        for span in (0.5, 2.0, 10.0):
            assert sum(begin <= at <= begin + span for at in granted) <= rate.burst + rate.per_s * span + 1


def test_keys_are_forgotten_oldest_first() -> None:
    buckets = KeyedBuckets(Rate(per_s=0.1, burst=1.0), capacity=2)
    for key in ("a", "b", "a", "c"):
        buckets.take(key, 0.0)
    assert len(buckets) == 2
    assert not buckets.take("a", 0.0), "heard again after b"
    assert buckets.take("b", 0.0), "forgotten"
