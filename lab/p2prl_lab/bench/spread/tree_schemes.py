"""Forwarding trees: star, chain, and the best single tree for known uplinks."""

from __future__ import annotations

import random

from p2prl.swarm.relay.chunk_sets import indices_of
from p2prl_lab.bench.spread.chunk_scheme import ChunkScheme
from p2prl_lab.bench.spread.home_links import Population


class Tree(ChunkScheme):
    """Each peer forwards every chunk to its children at once; orphans go to their nearest living ancestor."""

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

    def gained(self, source: int, peer: int, chunk: int) -> None:  # noqa: ARG002
        for child in self._children[peer]:
            if not self.have[child] >> chunk & 1:
                self.send(peer, child, chunk)

    def died(self, peer: int) -> None:
        parent = self._parents[peer]
        while parent != self.source and not self.network.links[parent].alive:
            parent = self._parents[parent]
        for child in self._children[peer]:
            if self.network.links[child].alive:
                self._parents[child] = parent
                self._children[parent].append(child)
                for chunk in indices_of(self.have[parent] & ~self.have[child]):
                    self.send(parent, child, chunk)
        self._children[peer] = []


def star(population: Population) -> list[int]:
    """The learner sends to everyone."""
    return [len(population.peers)] * len(population.peers)


def chain(population: Population) -> list[int]:
    """Each peer sends to the next, in random order."""
    order = list(range(len(population.peers)))
    random.Random(f"chain/{population.seed}").shuffle(order)  # noqa: S311
    parents = [0] * len(order)
    before = len(order)
    for peer in order:
        parents[peer], before = before, peer
    return parents


def fast_tree(population: Population) -> list[int]:
    """The best single tree for exactly known uplinks: the highest rate at which it can supply every peer.

    A peer of uplink u has ⌊u/r⌋ children at rate r; large uplinks are near the root. A peer whose downlink is below r
    receives at its downlink's rate.
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
    free = {len(peers): population.source.upload_bytes_s}
    queue, parents = [len(peers)], [0] * len(peers)
    at = 0
    for peer in peers:
        need = min(rate, population.peers[peer].download_bytes_s)
        while at < len(queue) and free[queue[at]] < need:
            at += 1
        if at == len(queue):
            return None
        parents[peer] = queue[at]
        free[queue[at]] -= need
        free[peer] = population.peers[peer].upload_bytes_s
        queue.append(peer)
    return parents
