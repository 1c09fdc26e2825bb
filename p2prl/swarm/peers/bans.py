"""Bans: peers that broke the wire's rules, ignored and not dialed for a while."""

from __future__ import annotations

from collections import Counter

from p2prl.protocol.identity import PeerId

_FORGIVEN_FAULTS = 3
"""Malformed messages at which a peer is banned: one may come from an old build, three do not."""


class Bans:
    """Counts faults and remembers bans, both within bounds."""

    def __init__(self, *, ban_s: float, capacity: int) -> None:
        """`capacity` bounds the peers remembered: a flood of keys must not fill the memory."""
        self._ban_s = ban_s
        self._capacity = capacity
        self._until: dict[PeerId, float] = {}
        self._faults: Counter[PeerId] = Counter()

    def ban(self, peer: PeerId, now: float) -> None:
        """Ban a peer from now on."""
        self._until.pop(peer, None)
        self._until[peer] = now + self._ban_s
        if len(self._until) > self._capacity:
            del self._until[next(iter(self._until))]  # the ban that ends first

    def fault(self, peer: PeerId, now: float, *, proven: bool) -> bool:
        """Count a fault. Bans the peer and returns True when it is `proven` malice or happened too often."""
        self._faults[peer] += 1
        if len(self._faults) > self._capacity:
            del self._faults[next(iter(self._faults))]
        if self._faults[peer] < _FORGIVEN_FAULTS and not proven:
            return False
        del self._faults[peer]
        self.ban(peer, now)
        return True

    def is_banned(self, peer: PeerId, now: float) -> bool:
        """Whether a peer's frames are to be ignored."""
        return self._until.get(peer, 0.0) > now
