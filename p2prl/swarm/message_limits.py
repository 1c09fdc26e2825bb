"""Limits on what strangers push and ask, before any of it is decoded or verified. Pure.

A signature costs its reader more than its sender, and keys are free. So a node has one budget for all pushes and
queries, far above what a swarm needs. While it is half full nobody is limited. Below that, each key and each subnet
has a share, larger for peers of standing. Many subnets can use up the rest within their shares, so the last quarter is
for those below an equal share. Exceeding a share is no fault: the message is ignored, and an honest peer sends it again
when no receipt comes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from p2prl.protocol.identity import PeerId
from p2prl.protocol.kinds import Kind
from p2prl.swarm.shared_allowance import SharedAllowance
from p2prl.swarm.token_buckets import KeyedBuckets, Rate

_KEYS = 4_096
"""Keys and subnets remembered; those that left are among them, so that reconnecting buys nothing."""


class Traffic(Enum):
    """Kinds of work that a message asks for."""

    GROUP = "group"
    """A group, or the header of a large one: a signature, and later a replay."""
    VERDICT = "verdict"
    """A verdict: a signature, and a place in the ledger."""
    OTHER = "other"
    """Any other envelope: a signature."""
    QUERY = "query"
    """A page of the ledger: a 50-byte question, 256 KiB of answer."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one kind of traffic, messages."""

    total: Rate
    """Over all peers."""
    newcomer: Rate
    """One key without standing, when the total is scarce."""
    known: Rate
    """One key of standing, the learner's or one that this node chose."""
    subnet: Rate
    """All keys of one subnet without standing."""


LIMITS = {
    Traffic.GROUP: Limits(Rate(1_000, 2_000), Rate(8, 256), Rate(200, 1_000), Rate(64, 512)),
    Traffic.VERDICT: Limits(Rate(500, 1_000), Rate(4, 64), Rate(100, 500), Rate(16, 128)),
    Traffic.OTHER: Limits(Rate(500, 1_000), Rate(16, 128), Rate(200, 1_000), Rate(64, 256)),
    Traffic.QUERY: Limits(Rate(64, 256), Rate(2, 16), Rate(8, 16), Rate(16, 64)),
}
"""1,000 groups a second are a third of the signatures that one core verifies. A newcomer's 256 groups in a burst are
what one key may have unchecked at the learner; 8 a second are more than one home GPU samples."""

SCARCE = 0.5
"""Level of the total below which shares bind."""

RARE = 0.25
"""Level of the total below which subnets, and peers of standing, must be below an equal share."""

_PLACE_SHARE = 1 / 256
"""Messages of each of these at once, of a burst of the total."""

_TRAFFIC = {
    Kind.ROLLOUT_GROUP: Traffic.GROUP,
    Kind.GROUP_HEADER: Traffic.GROUP,
    Kind.VERDICT: Traffic.VERDICT,
}


def traffic_of(envelope: bytes) -> Traffic:
    """What an envelope asks for, from its first two bytes: the array's head and the kind."""
    kind = envelope[1] if len(envelope) > 1 else 0
    return _TRAFFIC.get(kind, Traffic.OTHER)  # type: ignore[call-overload, no-any-return]


class MessageLimits:
    """Shares of one node's attention."""

    def __init__(self) -> None:
        self._total = {
            kind: SharedAllowance(limit.total, _PLACE_SHARE * limit.total.burst) for kind, limit in LIMITS.items()
        }
        self._newcomers = {kind: KeyedBuckets(limit.newcomer, capacity=_KEYS) for kind, limit in LIMITS.items()}
        self._known = {kind: KeyedBuckets(limit.known, capacity=_KEYS) for kind, limit in LIMITS.items()}
        self._subnets = {kind: KeyedBuckets(limit.subnet, capacity=_KEYS) for kind, limit in LIMITS.items()}

    def admits(self, kind: Traffic, peer: PeerId, subnet: str, now: float, *, is_known: bool) -> bool:
        """Count a message, and say whether to look at it."""
        total, place = self._total[kind], peer if is_known else subnet
        # The buckets fill and empty in quiet times too: a flood begins with the shares of its senders spent.
        if is_known:
            within = self._known[kind].take(peer, now)
        else:
            within = self._newcomers[kind].take(peer, now) and self._subnets[kind].take(subnet, now)
        left, burst = total.left(now), total.rate.burst
        is_due = left >= RARE * burst or total.is_due(place, now)
        if left < 1 or (left < SCARCE * burst and not (within and is_due)):
            return False
        total.use(place, 1.0, now)
        return True
