"""Offers of envelopes: those this node makes, with copies free for them, and those it asked for and has not got. Pure.

A peer may offer a thousand digests for 32 KiB, and many peers the same ones. So not only the envelopes are bounded, but
also the offers over all of them; the envelopes asked for first are given up first.

Offers made wait. All neighbors of an author learn of a new envelope at about the same time. If each offered it to the
others at once, every link would carry the offer both ways; after a random wait most of them have been offered it
already. The owner adds offers, reports which peers know an envelope, and takes the offers out when they are due.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator

from p2prl.protocol import limits
from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import PeerId
from p2prl.protocol.link_messages import Offer
from p2prl.swarm.ports import Randomness
from p2prl.swarm.random_choice import draw_one

_Copies = OrderedDict[tuple[PeerId, Digest], None]
"""Envelopes by peer, the newest last."""


class FreeCopies:
    """Open offers, and the pinned envelopes that each peer has got."""

    def __init__(self, capacity: int) -> None:
        """Each of the two tables holds as many entries."""
        self._capacity = capacity
        self._offered: _Copies = OrderedDict()
        self._given: _Copies = OrderedDict()
        """Of a connection, not of a link: a hello of another run ends a link, and costs 60 bytes."""

    def offered(self, peer: PeerId, name: Digest) -> None:
        """An envelope was offered to a peer: it may ask for it once."""
        self._note(self._offered, peer, name)

    def is_free(self, peer: PeerId, name: Digest, *, is_pinned: bool) -> bool:
        """Whether a peer has not had its copy yet."""
        key = peer, name
        return key in self._offered or (is_pinned and key not in self._given)

    def sent(self, peer: PeerId, name: Digest, *, is_pinned: bool) -> None:
        """A copy goes to a peer: it pays for another one."""
        self._offered.pop((peer, name), None)
        if is_pinned:
            self._note(self._given, peer, name)

    def remove_peer(self, peer: PeerId) -> None:
        """Forget what was offered to a peer whose link is gone."""
        _forget(self._offered, peer)

    def connection_lost(self, peer: PeerId) -> None:
        """A peer that connects again may have lost its memory: it gets its copies again."""
        _forget(self._given, peer)

    def _note(self, copies: _Copies, peer: PeerId, name: Digest) -> None:
        copies[peer, name] = None
        copies.move_to_end((peer, name))
        if len(copies) > self._capacity:
            copies.popitem(last=False)


def _forget(copies: _Copies, peer: PeerId) -> None:
    for key in [key for key in copies if key[0] == peer]:
        del copies[key]


class Announcements:
    """Pending offers by peer."""

    def __init__(self, rng: Randomness, max_wait_s: float) -> None:
        """A batch waits up to `max_wait_s`, uniformly at random."""
        self._rng = rng
        self._max_wait_s = max_wait_s
        self._pending: dict[PeerId, dict[Digest, None]] = {}
        self._due_at = math.inf

    def add(self, peer: PeerId, name: Digest) -> None:
        """Offer an envelope to a peer in the next batch."""
        self._pending.setdefault(peer, {})[name] = None

    def mark_known(self, peer: PeerId, name: Digest) -> None:
        """Cancel an offer: the peer has the envelope or was offered it elsewhere."""
        if peer in self._pending:
            self._pending[peer].pop(name, None)

    def remove_peer(self, peer: PeerId) -> None:
        """Drop the offers to a peer whose link is gone."""
        self._pending.pop(peer, None)

    def next_deadline(self) -> float:
        """When the batch is due; ∞ until `take_due` was called after the first `add`."""
        return self._due_at

    def take_due(self, now: float) -> Iterator[tuple[PeerId, Offer]]:
        """All offers, once the batch is due. Call it after each turn: the wait begins then."""
        if not self._pending:  # empty, or every peer it was for has left
            self._due_at = math.inf
            return
        if math.isinf(self._due_at):
            self._due_at = now + self._rng.random() * self._max_wait_s
        if now < self._due_at:
            return
        self._due_at = math.inf
        pending, self._pending = self._pending, {}
        step = limits.MAX_DIGESTS_PER_MESSAGE
        for peer, waiting in pending.items():
            names = tuple(waiting)
            for begin in range(0, len(names), step):
                yield peer, Offer(names[begin : begin + step])


class Offers:
    """Envelopes by name, with the peers that offered them and were not asked since."""

    def __init__(self, *, most_names: int, most_offers: int) -> None:
        self._most_names = most_names
        self._most_offers = most_offers
        self._peers: dict[Digest, set[PeerId]] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._peers)

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
