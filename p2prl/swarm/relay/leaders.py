"""Leaders: public neighbors that get the first copy of the learner's blobs, because everybody can fetch from them.

A home reaches few others, so a first copy in homes comes out of the learner's uplink again and again. While leaders
together upload at least as fast as the learner, the way through them costs nothing, and the other peers wait for them.

Anybody can say that it is public, and that its uplink is large. So a leader has to pass on what it gets: one whose
chunks show up nowhere else for a while leads no longer. Until then the others wait no longer than the learner's
patience, as for any volunteer. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from p2prl.protocol.identity import PeerId

HOARD_S = 5.0
"""A leader none of whose chunks has reached another peer for this long keeps them: a chunk of 512 KiB at 2 Mbit/s, and
its announcement."""

REST_S = 600.0
"""How long a peer that kept its chunks does not lead: a monthly limit, or malice, lasts longer than a busy minute."""

_REMEMBERED = 4_096
"""Peers remembered for that, over all: as many as can be linked, and their successors."""


@dataclass(slots=True)
class FirstCopy:
    """Chunks of one blob that one neighbor got before anybody else."""

    handed: int = 0
    passed_on: int = 0
    """Those of them that another neighbor holds, and not from here."""
    moved_at: float = 0.0
    """When the last one was passed on, or handed to a leader that had none left to pass on."""

    def hand(self, chunks: int, now: float) -> None:
        """The leader was sent chunks that nobody else has."""
        if self.handed == self.passed_on:
            self.moved_at = now
        self.handed |= chunks

    @property
    def kept(self) -> int:
        """Chunks of it that nobody else has yet."""
        return (self.handed & ~self.passed_on).bit_count()

    def see(self, chunks: int, now: float) -> None:
        """Another neighbor has announced chunks that we did not send it."""
        if chunks & self.handed & ~self.passed_on:
            self.passed_on |= chunks & self.handed
            self.moved_at = now

    def is_hoard(self, now: float) -> bool:
        """Whether chunks stay with this leader."""
        return self.handed != self.passed_on and now - self.moved_at >= HOARD_S


@dataclass(slots=True)
class Leaders:
    """Who may lead, and who has lost that for a while."""

    is_public: Callable[[PeerId], bool] = lambda _: False
    """Whether a peer says that it can be dialed where this node sees it."""
    _resting: dict[PeerId, float] = field(default_factory=dict)

    def among(self, peers: Iterable[PeerId], copies: dict[PeerId, FirstCopy], now: float) -> list[PeerId]:
        """The peers that lead a blob now; `copies` are the first copies of it."""
        found = []
        for peer in peers:
            copy = copies.get(peer)
            if copy is not None and copy.is_hoard(now):
                self._rest(peer, now)
            if self._resting.get(peer, now) <= now and self.is_public(peer):
                found.append(peer)
        return found

    def _rest(self, peer: PeerId, now: float) -> None:
        self._resting.pop(peer, None)
        self._resting[peer] = now + REST_S
        if len(self._resting) > _REMEMBERED:
            del self._resting[next(iter(self._resting))]


def carry_it(uploads_bytes_s: Iterable[float], own_bytes_s: float) -> bool:
    """Whether leaders with these uplinks pass a blob on as fast as this node sends it."""
    total = sum(uploads_bytes_s)
    return total > 0 and total >= own_bytes_s
