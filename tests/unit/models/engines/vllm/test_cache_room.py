"""Room in a cache: by the limits of the completions until enough have ended, then by the lengths they had."""

from __future__ import annotations

from p2prl.models.engines.vllm.sampler import CacheRoom


def test_limits_count_until_enough_completions_have_ended() -> None:
    room = CacheRoom(tokens=1_000, sequences=64, limit=200)
    assert room.more([]) == 5
    assert room.more([100] * 4) == 6
    assert room.more([100] * 10) == 0
    assert room.more([]) == 10  # of the last size
    for _ in range(15):
        room.ended(40, 100)
    assert room.more([100] * 4) == 6
    room.ended(40, 100)
    assert room.more([100] * 4) == (1_000 - 4 * 50) // 50  # two fifths, and a quarter of that in reserve
    for _ in range(1_000):
        room.ended(100, 100)
    assert room.more([100] * 4) == 6  # never more than the limits


def test_neither_the_sequences_nor_a_full_cache_are_exceeded() -> None:
    room = CacheRoom(tokens=1_000, sequences=8, limit=200)
    assert room.more([10] * 5) == 3
    assert room.more([10] * 8) == 0
    assert CacheRoom(tokens=1_000, sequences=64, limit=200).more([400, 100, 400]) == 0
    assert CacheRoom(tokens=1_000, sequences=64, limit=200).more([500, 501]) < 0
