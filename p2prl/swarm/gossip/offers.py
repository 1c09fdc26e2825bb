"""Offers of envelopes that this node has asked for and not got yet: which peers to ask next. Pure.

A peer may offer a thousand digests for 32 KiB, and many peers the same ones. So not only the envelopes are bounded, but
also the offers over all of them; the envelopes asked for first are given up first.
"""

from __future__ import annotations

from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import PeerId
from p2prl.swarm.ports import Randomness
from p2prl.swarm.random_choice import draw_one


class Offers:
    """Envelopes by name, with the peers that offered them and were not asked since."""

    def __init__(self, *, most_names: int, most_offers: int) -> None:
        self._most_names = most_names
        self._most_offers = most_offers
        self._peers: dict[Digest, set[PeerId]] = {}
        self._count = 0

    def add(self, name: Digest, peer: PeerId) -> bool:
        """Note an offer. Returns whether the envelope is to be asked for now: nobody else is being asked."""
        peers = self._peers.setdefault(name, set())
        is_first = not peers
        self._count += peer not in peers
        peers.add(peer)
        while len(self._peers) > self._most_names or self._count > self._most_offers:
            self.take(next(iter(self._peers)))
        return is_first

    def take(self, name: Digest) -> set[PeerId]:
        """Forget an envelope; returns the peers that offered it."""
        peers = self._peers.pop(name, set())
        self._count -= len(peers)
        return peers

    def remove_peer(self, peer: PeerId) -> None:
        """Forget the offers of a peer whose link is gone."""
        for peers in self._peers.values():
            self._count -= peer in peers
            peers.discard(peer)

    def next_to_ask(self, rng: Randomness) -> dict[PeerId, list[Digest]]:
        """For each envelope one of the peers that offered it, drawn at random; those without any are forgotten."""
        again: dict[PeerId, list[Digest]] = {}
        for name, peers in list(self._peers.items()):
            if not peers:
                del self._peers[name]
                continue
            peer = draw_one(sorted(peers), rng)
            peers.discard(peer)
            self._count -= 1
            again.setdefault(peer, []).append(name)
        return again
