"""Size of a run as its directory shows it, and what follows for reading and writing the directory. Pure.

A directory answers with a sample, as a BitTorrent tracker does (BEP 3): reading all N records would cost a swarm N². So
in a crowd a peer also writes its record under a key of its own, where anyone who has its name finds it, and once the
samples are full it seldom writes under the run's key: there, any third of the peers is as good as all of them.
"""

from __future__ import annotations

import math

from p2prl.protocol import limits
from p2prl.swarm.ports import Randomness

SAMPLE_BYTES = 8 * 1024
"""Records that one storing node answers with: 20 of the usual size. Five nodes answer a lookup."""

_CROWD = 16
"""Records found at once from which on they may be a sample. Fewer fit one storing node's answer."""

_MANY = 80
"""Records found at once from which on the samples of five storing nodes are full."""

_HOLDS_S = 1_200.0
"""How long a size holds after it was seen: two of the slowest lookups."""

_WRITTEN = 1 / 8
"""Chance of a record to be written under the run's key as well, while there are many. With a lifetime of three periods
a third of the peers is there at any time, and the nodes that store it get an eighth of the writes."""

MOST_NAMES = 16
"""Peers looked up by name at once: each costs a search of its own."""

MOST_KNOWN = 512
"""Peers in the address book of a node in a crowd: a fresh sample is better than an old one."""


class RunSize:
    """What the last lookups have shown."""

    def __init__(self, rng: Randomness) -> None:
        self._rng = rng
        self._crowd_until = -math.inf
        self._many_until = -math.inf

    def saw(self, records: int, now: float) -> None:
        """A lookup has found this many records."""
        if records >= _CROWD:
            self._crowd_until = now + _HOLDS_S
        if records >= _MANY:
            self._many_until = now + limits.PEER_RECORD_TTL_S

    def is_crowd(self, now: float) -> bool:
        """Whether a lookup may show a part of the run alone, so that peers are looked up by name."""
        return now < self._crowd_until

    def writes_for_all(self, now: float) -> bool:
        """Whether to write a record under the run's key this time; drawn at random while there are many."""
        return now >= self._many_until or self._rng.random() < _WRITTEN
