"""BitTorrent's rules on simulated home links: tit-for-tat among about 30 neighbors, rarest chunk first.

Every ten seconds a peer unchokes the four peers that sent it most since the last round, plus a random one for thirty
seconds; a seed unchokes five at random. Two chunks are in flight to each unchoked peer. (Cohen, 2003.)
"""

from __future__ import annotations

import random

from p2prl.swarm.relay.chunk_sets import Rarity
from p2prl_lab.bench.spread.chunk_scheme import ChunkScheme
from p2prl_lab.bench.spread.home_links import Population

_NEIGHBORS = 30
_RECHOKE_S = 10.0
_OPTIMISTIC_ROUNDS = 3
_REGULAR = 4
_PER_PAIR = 2


class BitTorrent(ChunkScheme):
    """BitTorrent swarm. The learner is the first seed; finished peers stay as seeds."""

    def __init__(self, population: Population) -> None:
        super().__init__(population)
        count = len(self.have)
        self._rng = random.Random(f"bittorrent/{population.seed}")  # noqa: S311
        self._near: list[set[int]] = [set() for _ in range(count)]
        for peer in range(count):
            for other in self._rng.sample(range(count), min(count - 1, _NEIGHBORS // 2 + 1)):
                if other != peer:
                    self._near[peer].add(other)
                    self._near[other].add(peer)
        self._rarity = [Rarity(population.chunks) for _ in range(count)]
        for other in self._near[self.source]:
            self._rarity[other].change(0, self.complete)
        self._coming = [0] * count
        self._in_flight: dict[tuple[int, int], int] = {}
        self._got: list[dict[int, int]] = [{} for _ in range(count)]
        self._unchoked: list[list[int]] = [[] for _ in range(count)]
        self._optimistic = [-1] * count
        self._sent_by_doomed: dict[int, list[tuple[int, int]]] = {}
        for peer in range(count):
            # All start at once with random unchokes; later rounds are staggered over the period.
            self._rechoke(peer, round_number=0, first=True)

    def gained(self, source: int, peer: int, chunk: int) -> None:
        self._coming[peer] &= ~(1 << chunk)
        self._got[peer][source] = self._got[peer].get(source, 0) + 1
        for other in self._near[peer]:
            self._rarity[other].change(0, 1 << chunk)
        self._feed(peer)

    def free(self, source: int, peer: int) -> None:
        self._in_flight[source, peer] -= 1
        self._feed(source)

    def died(self, peer: int) -> None:
        for receiver, chunk in self._sent_by_doomed.pop(peer, ()):
            self._coming[receiver] &= ~(1 << chunk)
        for other in self._near[peer]:
            self._near[other].discard(peer)
            self._rarity[other].change(self.have[peer], 0)
            self._in_flight.pop((other, peer), None)
            if peer in self._unchoked[other]:
                self._unchoked[other].remove(peer)
            self._feed(other)

    def _rechoke(self, peer: int, *, round_number: int, first: bool = False) -> None:
        if not self.network.links[peer].alive:
            return
        wanting = [other for other in sorted(self._near[peer]) if self.have[other] != self.complete]
        self._rng.shuffle(wanting)
        if self.have[peer] != self.complete:
            wanting.sort(key=lambda other: -self._got[peer].get(other, 0))
        chosen = wanting[:_REGULAR]
        if round_number % _OPTIMISTIC_ROUNDS == 0 or self._optimistic[peer] not in wanting:
            rest = wanting[_REGULAR:]
            self._optimistic[peer] = rest[int(self._rng.random() * len(rest))] if rest else -1
        if self._optimistic[peer] >= 0 and self._optimistic[peer] not in chosen:
            chosen.append(self._optimistic[peer])
        self._unchoked[peer] = chosen
        self._got[peer].clear()
        self._feed(peer)
        after_s = _RECHOKE_S * (self._rng.random() if first else 1.0)
        self.loop.at(self.loop.now + after_s, lambda: self._rechoke(peer, round_number=round_number + 1))

    def _feed(self, peer: int) -> None:
        """Keep two chunks in flight to every unchoked peer."""
        for other in self._unchoked[peer]:
            while self._in_flight.get((peer, other), 0) < _PER_PAIR:
                useful = self.have[peer] & ~self.have[other] & ~self._coming[other]
                if not useful:
                    break
                chunk = self._rarity[other].rarest(useful, self._rng)
                self._coming[other] |= 1 << chunk
                self._in_flight[peer, other] = self._in_flight.get((peer, other), 0) + 1
                if peer in self.population.deaths:
                    self._sent_by_doomed.setdefault(peer, []).append((other, chunk))
                self.send(peer, other, chunk)
