"""Peers linked to the source in the relay benchmark, sampled by uplink."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

from p2prl.swarm.peers.topology import Candidate
from p2prl.swarm.ports import Randomness

SOURCE_DEGREE = 48
"""Number of peers the source sends chunks to; they spread the blob further."""

P = TypeVar("P")


def draw_by_upload(swarm: Mapping[P, Candidate], count: int, rng: Randomness) -> list[P]:
    """Draw `count` different peers, weighted by uplink (Efraimidis and Spirakis, 2006)."""

    def key(peer: P) -> float:
        return math.log(max(rng.random(), 1e-300)) / max(swarm[peer].upload_bytes_s, 1.0)

    keys = {peer: key(peer) for peer in swarm}
    return sorted(swarm, key=lambda peer: -keys[peer])[:count]
