"""Source links of the relay benchmark."""

from __future__ import annotations

import random
from collections import Counter

from p2prl.bench.spread.product_relay import draw_by_upload
from p2prl.swarm.peers.topology import Candidate


def test_large_uplinks_are_drawn_more_often() -> None:
    swarm = {number: Candidate(10.0 if number < 50 else 1.0) for number in range(100)}
    rng, drawn = random.Random(4), Counter[bool]()
    for _ in range(200):
        chosen = draw_by_upload(swarm, 10, rng)
        assert len(set(chosen)) == 10
        drawn.update(peer < 50 for peer in chosen)
    assert drawn[True] > 6 * drawn[False]
