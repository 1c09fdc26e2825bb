"""Batched offers: new envelopes are announced after a short random wait, except to peers that have them by then.

All neighbors of an author learn of a new envelope at about the same time. If each offered it to the others at once,
every link would carry the offer both ways; after a random wait most of them have been offered it already.

Pure: the owner adds offers, reports which peers know an envelope, and takes the offers out when they are due.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from p2prl.protocol import limits
from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import PeerId
from p2prl.protocol.link_messages import Offer
from p2prl.swarm.ports import Randomness


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
