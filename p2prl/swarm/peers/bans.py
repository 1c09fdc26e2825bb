"""Bans: peers that broke the wire's rules, ignored and not dialed for a while."""

from __future__ import annotations

from collections import Counter

from p2prl.protocol.identity import PeerId

BAN_S = 600.0
"""How long a peer that broke the rules is ignored and not dialed: long beside a restart with a mended build, short
beside an evening, since an address may go to somebody else."""

_FORGIVEN_FAULTS = 3
"""Malformed messages at which a peer is banned: one may come from an old build, three do not."""


class Bans:
    """Counts faults and remembers bans, both within bounds."""

    def __init__(self, *, capacity: int) -> None:
        """`capacity` bounds the peers remembered: a flood of keys must not fill the memory."""
        self._capacity = capacity
        self._until: dict[PeerId, float] = {}
        self._faults: Counter[PeerId] = Counter()

    def ban(self, peer: PeerId, now: float) -> None:
        """Ban a peer from now on."""
        self._until.pop(peer, None)
        self._until[peer] = now + BAN_S
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
