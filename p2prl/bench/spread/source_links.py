"""Peers the source is linked with in the relay benchmark, drawn by their uplinks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

from p2prl.swarm.peers.topology import Candidate
from p2prl.swarm.ports import Randomness

SOURCE_DEGREE = 48
"""Peers the source sends chunks to: the blob must spread from there."""

P = TypeVar("P")


def draw_by_upload(swarm: Mapping[P, Candidate], count: int, rng: Randomness) -> list[P]:
    """Draw `count` different peers, each with a chance that grows with its uplink (Efraimidis and Spirakis, 2006)."""

    def key(peer: P) -> float:
        return math.log(max(rng.random(), 1e-300)) / max(swarm[peer].upload_bytes_s, 1.0)

    keys = {peer: key(peer) for peer in swarm}
    return sorted(swarm, key=lambda peer: -keys[peer])[:count]
