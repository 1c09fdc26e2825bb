"""Envelopes that a peer may have without credit: what was offered to it, and once what everybody needs. Pure."""

from __future__ import annotations

from collections import OrderedDict

from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import PeerId

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
