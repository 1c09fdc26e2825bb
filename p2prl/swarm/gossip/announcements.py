"""Offers held back a little: news travels in company, and is not told to whoever tells it first.

All neighbours of an author hear of a new envelope at about the same time. If each offered it to the others at once,
every link would carry the offer both ways; after a random wait most of them have been offered it already.

Pure: the owner says what there is to offer and who knows it, and takes the offers out when they are due.
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
    """Names that neighbours are still to be offered."""

    def __init__(self, rng: Randomness, longest_wait_s: float) -> None:
        """An offer waits up to `longest_wait_s`, uniformly at random."""
        self._rng = rng
        self._longest_wait_s = longest_wait_s
        self._pending: dict[PeerId, dict[Digest, None]] = {}
        self._due_at = math.inf

    def add(self, peer: PeerId, name: Digest) -> None:
        """Offer an envelope to a neighbour, soon."""
        self._pending.setdefault(peer, {})[name] = None

    def is_known(self, peer: PeerId, name: Digest) -> None:
        """The neighbour has shown that it knows of an envelope."""
        if peer in self._pending:
            self._pending[peer].pop(name, None)

    def forget(self, peer: PeerId) -> None:
        """The link is gone."""
        self._pending.pop(peer, None)

    def next_deadline(self) -> float:
        """When `take_due` has something; ∞ while it was not asked since the last `add`."""
        return self._due_at

    def take_due(self, now: float) -> Iterator[tuple[PeerId, Offer]]:
        """All offers, when their time has come. To be asked after each turn: the wait begins then."""
        if not self._pending:  # all whom it was for have left, or there was nothing
            self._due_at = math.inf
            return
        if math.isinf(self._due_at):
            self._due_at = now + self._rng.random() * self._longest_wait_s
        if now < self._due_at:
            return
        self._due_at = math.inf
        pending, self._pending = self._pending, {}
        step = limits.MAX_DIGESTS_PER_MESSAGE
        for peer, waiting in pending.items():
            names = tuple(waiting)
            for begin in range(0, len(names), step):
                yield peer, Offer(names[begin : begin + step])
