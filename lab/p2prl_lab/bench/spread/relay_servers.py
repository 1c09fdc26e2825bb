"""Relay servers: fast machines that are not peers and forward every chunk."""

from __future__ import annotations

import random

from p2prl_lab.bench.spread.chunk_scheme import ChunkScheme
from p2prl_lab.bench.spread.home_links import MBIT_BYTES, HomeLink, Population

_RELAYS = 4
_RELAY_MBIT = 1000.0
_REQUESTS = 8
"""Chunks a peer requests ahead."""


class RelayServers(ChunkScheme):
    """Four servers of 1 Gbit/s: the learner uploads to them, every peer downloads each chunk from a random one."""

    def __init__(self, population: Population) -> None:
        rate = _RELAY_MBIT * MBIT_BYTES
        super().__init__(population, tuple(HomeLink(rate, rate, number) for number in range(_RELAYS)))
        self._rng = random.Random(f"relays/{population.seed}")  # noqa: S311
        self._relays = range(self.source + 1, self.source + 1 + _RELAYS)
        self._waiting: dict[tuple[int, int], list[int]] = {}
        self._next = [0] * len(population.peers)
        for chunk in range(population.chunks):
            for relay in self._relays:
                self.send(self.source, relay, chunk)
        for peer in range(len(population.peers)):
            for _ in range(_REQUESTS):
                self._ask(peer)

    def gained(self, source: int, peer: int, chunk: int) -> None:  # noqa: ARG002
        if peer in self._relays:
            for client in self._waiting.pop((peer, chunk), ()):
                self.send(peer, client, chunk)
        elif peer < self.source:
            self._ask(peer)

    def _ask(self, peer: int) -> None:
        chunk = self._next[peer]
        if chunk == self.population.chunks:
            return
        self._next[peer] += 1
        relay = self._relays[int(self._rng.random() * _RELAYS)]

        def received() -> None:
            if self.have[relay] >> chunk & 1:
                self.send(relay, peer, chunk)
            else:
                self._waiting.setdefault((relay, chunk), []).append(peer)

        self.network.tell(self.network.latency_s(peer, relay), received)
