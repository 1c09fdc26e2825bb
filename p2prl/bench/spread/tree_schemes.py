"""Other ways to bring a blob to everybody, on the same wires and links as the product.

All are given more than they would have in life: trees know every link, nobody spends a message on asking, requests
and chunk choices see the other side as it is, and a death is noticed after three seconds, without a false alarm.
"""

from __future__ import annotations

import random

from p2prl.bench.spread.home_links import MBIT_BYTES, HomeLink, Population
from p2prl.bench.spread.outcome import Outcome, Tell
from p2prl.bench.spread.paced_links import Link, Wires
from p2prl.sim.virtual_time import START, VirtualLoop
from p2prl.swarm.relay.chunk_sets import indices_of

NOTICED_S = 3.0
"""How long a silent peer goes unnoticed."""

WORST = 40.0
"""A run ends at this many times the lower bound, done or not: later figures change no verdict."""

_RELAYS = 4
_RELAY_MBIT = 1000.0
_REQUESTS = 8
"""Chunks a client of the relays asks for ahead."""


class Copies:
    """Who holds what, over wires; schemes decide who sends."""

    def __init__(self, population: Population, extra: tuple[HomeLink, ...] = ()) -> None:
        self.population = population
        self.source = len(population.peers)
        everyone = (*population.peers, population.source, *extra)
        self.loop = VirtualLoop()
        self.wires = Wires(self.loop, [Link(p.upload_bytes_s, p.download_bytes_s, p.region) for p in everyone])
        self.whole = (1 << population.chunks) - 1
        self.have = [0] * len(everyone)
        self.have[self.source] = self.whole
        self.finished_at: dict[int, float] = {}
        self.arrived = self.useful = 0
        for peer, at in population.deaths.items():
            self.loop.at(START + at, lambda peer=peer: self._die(peer))  # type: ignore[misc]

    def size(self, chunk: int) -> int:
        """Bytes of a chunk."""
        return min(self.population.chunk_bytes, self.population.size_bytes - chunk * self.population.chunk_bytes)

    def send(self, source: int, destination: int, chunk: int) -> None:
        """Queue a chunk; `gained` and `free` follow."""

        def arrived() -> None:
            self.arrived += self.size(chunk)
            if not self.have[destination] >> chunk & 1:
                self.useful += self.size(chunk)
                self.have[destination] |= 1 << chunk
                if self.have[destination] == self.whole:
                    self.finished_at[destination] = self.loop.now - START
            self.gained(source, destination, chunk)

        self.wires.send(source, destination, self.size(chunk), arrived, lambda: self.free(source, destination))

    def gained(self, source: int, peer: int, chunk: int) -> None:
        """A chunk has arrived, new or not."""

    def free(self, source: int, peer: int) -> None:
        """It is acknowledged."""

    def died(self, peer: int) -> None:
        """Those around have noticed a death."""

    def run(self, tell: Tell) -> Outcome:
        """Until every survivor is done, or far beyond the bound."""
        limit = START + WORST * self.population.lower_bound_s()
        waiting = set(self.population.survivors)
        while waiting and self.loop.now < limit:
            self.loop.run_until(self.loop.now + 1.0)
            waiting -= self.finished_at.keys()
            tell(1.0 - len(waiting) / len(self.population.survivors))
        return Outcome(
            finished_at=self.finished_at,
            source_bytes=self.wires.links[self.source].sent_bytes,
            sent_bytes=sum(link.sent_bytes for link in self.wires.links),
            arrived_bytes=self.arrived,
            useful_bytes=self.useful,
        )

    def _die(self, peer: int) -> None:
        self.wires.kill(peer)
        self.loop.at(self.loop.now + NOTICED_S, lambda: self.died(peer))


class Tree(Copies):
    """Every peer passes each chunk on to its children as it comes; orphans go to their nearest living ancestor."""

    def __init__(self, population: Population, parents: list[int]) -> None:
        """`parents[i]` is the parent of peer i."""
        super().__init__(population)
        self._parents = parents
        self._children: list[list[int]] = [[] for _ in range(len(self.have))]
        for peer, parent in enumerate(parents):
            self._children[parent].append(peer)
        for chunk in range(population.chunks):
            for child in self._children[self.source]:
                self.send(self.source, child, chunk)

    def gained(self, source: int, peer: int, chunk: int) -> None:  # noqa: ARG002 - whoever sent it
        for child in self._children[peer]:
            if not self.have[child] >> chunk & 1:
                self.send(peer, child, chunk)

    def died(self, peer: int) -> None:
        parent = self._parents[peer]
        while parent != self.source and not self.wires.links[parent].alive:
            parent = self._parents[parent]
        for child in self._children[peer]:
            if self.wires.links[child].alive:
                self._parents[child] = parent
                self._children[parent].append(child)
                for chunk in indices_of(self.have[parent] & ~self.have[child]):
                    self.send(parent, child, chunk)
        self._children[peer] = []


def star(population: Population) -> list[int]:
    """The learner sends to everybody."""
    return [len(population.peers)] * len(population.peers)


def chain(population: Population) -> list[int]:
    """One after the other, in no order."""
    order = list(range(len(population.peers)))
    random.Random(f"chain/{population.seed}").shuffle(order)  # noqa: S311
    parents = [0] * len(order)
    before = len(order)
    for peer in order:
        parents[peer], before = before, peer
    return parents


def fast_tree(population: Population) -> list[int]:
    """The best single tree for exactly known uplinks: the highest rate at which every peer can be fed.

    A peer of uplink u has ⌊u/r⌋ children at rate r; large uplinks stand near the root. Peers whose downlink is below
    r are fed at what they take.
    """
    peers = sorted(range(len(population.peers)), key=lambda peer: -population.peers[peer].upload_bytes_s)
    best, rate = star(population), population.source.upload_bytes_s
    while rate > 1.0:
        parents = _tree_at(population, peers, rate)
        if parents is not None:
            return parents
        rate *= 0.97
    return best


def _tree_at(population: Population, peers: list[int], rate: float) -> list[int] | None:
    spare = {len(peers): population.source.upload_bytes_s}
    queue, parents = [len(peers)], [0] * len(peers)
    at = 0
    for peer in peers:
        need = min(rate, population.peers[peer].download_bytes_s)
        while at < len(queue) and spare[queue[at]] < need:
            at += 1
        if at == len(queue):
            return None
        parents[peer] = queue[at]
        spare[queue[at]] -= need
        spare[peer] = population.peers[peer].upload_bytes_s
        queue.append(peer)
    return parents


class Relays(Copies):
    """Four servers of 1 Gbit/s that are no peers: the learner fills them, everybody pulls from one at random."""

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

    def gained(self, source: int, peer: int, chunk: int) -> None:  # noqa: ARG002 - whoever sent it
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

        def heard() -> None:
            if self.have[relay] >> chunk & 1:
                self.send(relay, peer, chunk)
            else:
                self._waiting.setdefault((relay, chunk), []).append(peer)

        self.wires.tell(self.wires.latency_s(peer, relay), heard)
