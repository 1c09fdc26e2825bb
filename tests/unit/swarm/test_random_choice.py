"""Random draws: distinct and uniform."""

from __future__ import annotations

import random
from collections import Counter

from p2prl.swarm.random_choice import draw, draw_one


def test_draws_are_distinct_and_bounded() -> None:
    rng = random.Random(1)
    for size in range(6):
        for count in range(-1, 8):
            drawn = draw(iter(range(size)), count, rng)
            assert len(drawn) == len(set(drawn)) == max(0, min(size, count))
            assert set(drawn) <= set(range(size))


def test_draws_are_uniform_in_every_position() -> None:
    rng = random.Random(2)
    places = Counter((place, who) for _ in range(6000) for place, who in enumerate(draw("abcde", 3, rng)))
    assert len(places) == 15
    assert all(1080 <= times <= 1320 for times in places.values())  # 1200 ± 4 standard deviations
    assert all(1850 <= times <= 2150 for times in Counter(draw_one("abc", rng) for _ in range(6000)).values())
