"""Budget for answers: bytes that other peers' questions may draw from this node's uplink.

Keys are free, and a question of 50 bytes can ask for 256 KiB. So answers share a part of the owner's upload rate, which
leaves the rest to weights; strangers have a smaller part than peers of standing, and when it is short each subnet has a
share of that. Within it a stranger is answered with at most eight times the bytes that it sent, as QUIC does before an
address is validated (RFC 9000, section 8.1): what it asks for costs its own uplink too. Who needs a large answer
sends PADDING with the question. The learner's questions are counted, and always answered. Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from p2prl.protocol.identity import PeerId
from p2prl.protocol.limits import MAX_AMPLIFICATION
from p2prl.swarm.peers.subnets import Subnet

STRANGER_SHARE = 0.1
"""Part of the upload rate for answers to strangers: with what answers cost besides, 80 % stay for weights."""

KNOWN_SHARE = 0.25
"""The same for peers of standing, the learner's and those that this node chose."""

SUBNET_SHARE = 0.25
"""Part of the strangers' share for one subnet, once half of it is spent."""

_HELD_S = 1.0
"""Bytes of a full allowance, in seconds of the upload rate: the longest that answers delay a chunk."""

_SUBNET_HELD_S = 0.25
"""The same of one subnet."""

UNKNOWN_RATE_BYTES_S = 2.5e6
"""Upload rate that is assumed until one is set or measured: 20 Mbit/s."""

_SUBNETS = 4_096
"""Subnets remembered; those that left are among them, so that reconnecting buys nothing."""

_MOST_CREDIT_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Asker:
    """What decides how much a peer is answered."""

    subnet: Subnet
    is_known: bool
    is_learner: bool = False


@dataclass(slots=True)
class _Allowance:
    """Bytes that may be sent; the last answer may overdraw it, since an envelope cannot be cut."""

    level: float
    at: float

    def fill(self, bytes_s: float, most: float, now: float) -> float:
        self.level = min(most, self.level + max(0.0, now - self.at) * bytes_s)
        self.at = max(self.at, now)
        return self.level


class AnswerBudget:
    """Accounts of the answers that one node gives."""

    def __init__(self, asker: Callable[[PeerId, float], Asker], rate_bytes_s: float, now: float) -> None:
        """`rate_bytes_s` is the upload rate; 0 while it is unknown."""
        self._asker = asker
        self._rate_bytes_s = rate_bytes_s or UNKNOWN_RATE_BYTES_S
        full = _HELD_S * self._rate_bytes_s
        self._strangers, self._known = _Allowance(full, now), _Allowance(full, now)
        self._subnets: OrderedDict[Subnet, _Allowance] = OrderedDict()
        self._credit: dict[PeerId, int] = {}
        """Bytes that linked peers may be answered, for those that they sent."""
        self.is_open = True
        """Whether strangers are answered; False while the month's upload budget is used up."""

    def set_rate(self, bytes_s: float) -> None:
        """Set the upload rate; 0 is an unknown one."""
        self._rate_bytes_s = bytes_s or UNKNOWN_RATE_BYTES_S

    def received(self, peer: PeerId, size_bytes: int) -> None:
        """A linked peer has sent a frame: it may be answered for it."""
        credit = self._credit.get(peer, 0) + MAX_AMPLIFICATION * size_bytes
        self._credit[peer] = min(credit, _MOST_CREDIT_BYTES)

    def remove_peer(self, peer: PeerId) -> None:
        """Forget a peer whose link is gone; a new link begins without credit."""
        self._credit.pop(peer, None)

    def room(self, peer: PeerId, now: float, *, offered: bool = False) -> int:
        """Bytes of the largest answer that may be sent to a peer now.

        What this node has `offered` to a peer needs no credit, and uses up what there is: it is its own idea.
        """
        asker = self._asker(peer, now)
        if asker.is_learner:
            return _MOST_CREDIT_BYTES
        if asker.is_known:
            level = self._known.fill(KNOWN_SHARE * self._rate_bytes_s, _HELD_S * self._rate_bytes_s, now)
            return _MOST_CREDIT_BYTES if level > 0 else 0
        if not self.is_open:
            return 0
        most = _HELD_S * self._rate_bytes_s
        level = self._strangers.fill(STRANGER_SHARE * self._rate_bytes_s, most, now)
        if level <= 0 or (level < most / 2 and self._subnet(asker.subnet, now).level <= 0):
            return 0
        return _MOST_CREDIT_BYTES if offered else self._credit.get(peer, 0)

    def take(self, peer: PeerId, size_bytes: int, now: float, *, offered: bool = False) -> bool:
        """Count an answer that is sent now, if there is room for it; False takes nothing."""
        if self.room(peer, now, offered=offered) < size_bytes:
            return False
        asker = self._asker(peer, now)
        if asker.is_known:
            self._known.level -= size_bytes
            return True
        self._strangers.level -= size_bytes
        self._subnet(asker.subnet, now).level -= size_bytes
        self._credit[peer] = max(0, self._credit.get(peer, 0) - size_bytes)
        return True

    def _subnet(self, subnet: Subnet, now: float) -> _Allowance:
        most = _SUBNET_HELD_S * self._rate_bytes_s
        allowance = self._subnets.pop(subnet, None) or _Allowance(most, now)
        self._subnets[subnet] = allowance
        if len(self._subnets) > _SUBNETS:
            self._subnets.popitem(last=False)
        allowance.fill(SUBNET_SHARE * STRANGER_SHARE * self._rate_bytes_s, most, now)
        return allowance
