"""Budget for answers: bytes that other peers' questions may draw from this node's uplink.

Keys are free, and a question of 50 bytes can ask for 256 KiB. So answers share a part of the owner's upload rate, which
leaves the rest to weights, and strangers have smaller parts than peers of standing. One part is for what the node has
offered them and for the first copy of what everybody needs: no question of others delays a newcomer's start. From the
other a stranger is answered with at most eight times the bytes that it sent, as QUIC does before an address is
validated (RFC 9000, section 8.1): what it asks for costs its own uplink too. A peer that needs a large answer sends
PADDING with the question. Half of either part is kept for subnets below an equal share of it. The learner's questions
are always answered. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from p2prl.protocol.identity import PeerId
from p2prl.protocol.limits import MAX_AMPLIFICATION
from p2prl.swarm.peers.subnets import Subnet
from p2prl.swarm.shared_allowance import Allowance, SharedAllowance
from p2prl.swarm.token_buckets import Rate

PAID_SHARE = 0.06
"""Part of the upload rate for answers that strangers pay for."""

OFFERED_SHARE = 0.06
"""The same for what was offered to them: with both, and with what links cost besides, 80 % stay for weights."""

KNOWN_SHARE = 0.25
"""The same for all answers to peers of standing, and for what was offered to those that this node chose."""

UNKNOWN_RATE_BYTES_S = 2.5e6
"""Upload rate that is assumed until one is set or measured: 20 Mbit/s."""

_HELD_S = 1.0
"""Bytes of a full allowance, in seconds of the upload rate: the longest that answers delay a chunk."""

_SUBNET_HELD_S = 1 / 64
"""The same of one subnet: thirty that come at once do not use up the half that is kept for newcomers."""

_MOST_CREDIT_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Asker:
    """What decides how much a peer is answered."""

    subnet: Subnet
    has_standing: bool
    """The learner has credited its work."""
    is_chosen: bool = False
    """This node dialed it, or the learner introduced it: no merit, as anybody may write a record to be found by."""
    is_learner: bool = False


class AnswerBudget:
    """Accounts of the answers that one node gives."""

    def __init__(self, asker: Callable[[PeerId, float], Asker], rate_bytes_s: float) -> None:
        """`rate_bytes_s` is the upload rate; 0 while it is unknown."""
        self._asker = asker
        self._rate_bytes_s = rate_bytes_s or UNKNOWN_RATE_BYTES_S
        # In seconds of the upload rate, which changes.
        self._known = Allowance(Rate(KNOWN_SHARE, _HELD_S))
        self._paid = SharedAllowance(Rate(PAID_SHARE, _HELD_S), _SUBNET_HELD_S)
        self._offered = SharedAllowance(Rate(OFFERED_SHARE, _HELD_S), _SUBNET_HELD_S)
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

    def room(self, peer: PeerId, now: float, *, offered: bool = False, may_wait: bool = False) -> int:
        """Bytes of the largest answer that may be sent to a peer now.

        What this node has `offered` to a peer needs no credit, and uses up what there is: it is its own idea. What
        `may_wait` leaves half of each allowance to the rest.
        """
        asker, reserve = self._asker(peer, now), 0.5 * may_wait
        if asker.is_learner:
            return _MOST_CREDIT_BYTES
        if _is_known(asker, offered=offered):
            return _MOST_CREDIT_BYTES if self._known.left(now) > reserve * _HELD_S else 0
        shared = self._shared(offered)
        is_scarce = shared.left(now) <= 0.5 * _HELD_S
        if not self.is_open or shared.left(now) <= 0 or (is_scarce and not shared.is_due(asker.subnet, now, reserve)):
            return 0
        return _MOST_CREDIT_BYTES if offered else self._credit.get(peer, 0)

    def take(self, peer: PeerId, size_bytes: int, now: float, *, offered: bool = False, may_wait: bool = False) -> bool:
        """Count an answer that is sent now, if there is room for it; False takes nothing."""
        if self.room(peer, now, offered=offered, may_wait=may_wait) < size_bytes:
            return False
        asker, seconds = self._asker(peer, now), size_bytes / self._rate_bytes_s
        if _is_known(asker, offered=offered):
            self._known.take(seconds)
            return True
        self._shared(offered).use(asker.subnet, seconds, now)
        self._credit[peer] = max(0, self._credit.get(peer, 0) - size_bytes)
        return True

    def _shared(self, offered: bool) -> SharedAllowance:
        return self._offered if offered else self._paid


def _is_known(asker: Asker, *, offered: bool) -> bool:
    """Whether an answer comes from the share of known peers. A chosen one has it for what it was offered alone: its
    questions are a stranger's, or free keys that are found in the directory would ask for a quarter of the uplink."""
    return asker.has_standing or (asker.is_chosen and offered)
