"""Queries of a standby learner, at both ends: who may ask the learner, how often, and what an answer was asked for.

The learner checks in the order of cost: a peer whose permit was checked before is known by its bytes, another costs one
of the node's queries and then a signature. Pure.
"""

from __future__ import annotations

from collections import OrderedDict

from p2prl.protocol.digests import Digest
from p2prl.protocol.follow_permit import check_permit
from p2prl.protocol.identity import PeerId, public_key_of
from p2prl.protocol.link_messages import FollowPiece, FollowQuery
from p2prl.swarm.message_limits import MessageLimits, Traffic
from p2prl.swarm.token_buckets import KeyedBuckets, Rate

FOLLOW_PIECE_BYTES = 192 * 1024
"""Bytes of one answer, but for the last of a file: with its header it is a control frame."""

FOLLOW_RATE = Rate(per_s=64.0, burst=64.0)
"""Answers to one follower: 12.6 MB/s of the learner's uplink at most."""

FOLLOW_SHARE = 0.5
"""Of a learner's upload limit, where its owner has set one."""

MOST_FOLLOWERS = 4
"""Followers whose permits are remembered; further ones are checked again at each query."""

MOST_ASKED = 64
"""Queries of a follower whose answers are awaited; answers to older ones are not taken."""


class FollowGate:
    """The learner's side: admits queries of peers with a permit, within their rate."""

    def __init__(self, *, run: Digest, learner: bytes, upload_bytes_s: float, entry: MessageLimits) -> None:
        """`upload_bytes_s` is the owner's limit, 0 for none; `entry` counts the queries whose permit is not known."""
        self._run = run
        self._learner = learner
        self._entry = entry
        per_s = FOLLOW_RATE.per_s
        if upload_bytes_s:
            per_s = min(per_s, FOLLOW_SHARE * upload_bytes_s / FOLLOW_PIECE_BYTES)
        self._rates = KeyedBuckets(Rate(per_s, FOLLOW_RATE.burst), capacity=MOST_FOLLOWERS)
        self._permits: OrderedDict[PeerId, tuple[bytes, float]] = OrderedDict()
        """Follower → (its permit, when it was checked), the newest last."""

    def admits(self, query: FollowQuery, peer: PeerId, subnet: str, now: float) -> bool:
        """Whether to answer. Raises `RemoteProtocolError` when the run's key does not allow this peer to follow."""
        permit, checked_at = self._permits.get(peer, (b"", 0.0))
        if query.permit != permit or not 0.0 <= now - checked_at < _CHECKED_AGAIN_S:
            if not self._entry.admits(Traffic.QUERY, peer, subnet, now, is_known=False):
                return False
            check_permit(query.permit, learner=self._learner, run=self._run, follower=public_key_of(peer), now=now)
            self._permits[peer] = query.permit, now
            self._permits.move_to_end(peer)
            if len(self._permits) > MOST_FOLLOWERS:
                self._permits.popitem(last=False)
        return self._rates.take(peer, now)


_CHECKED_AGAIN_S = 60.0
"""A permit that was checked counts for this long: one that ends is not used much longer."""


class AskedPieces:
    """The follower's side: pieces that the learner was asked for."""

    def __init__(self) -> None:
        self._asked: OrderedDict[tuple[int, int, int], None] = OrderedDict()

    def ask(self, query: FollowQuery) -> FollowQuery:
        """Note a query and return it."""
        self._asked[query.copy, query.file, query.piece] = None
        if len(self._asked) > MOST_ASKED:
            self._asked.popitem(last=False)
        return query

    def takes(self, piece: FollowPiece) -> bool:
        """Whether an answer was asked for; it is answered then. The head of a new copy answers any query: the copy
        asked for may be gone."""
        if len(piece.data) > FOLLOW_PIECE_BYTES:
            return False
        if (piece.file, piece.piece) == (-1, -1):
            return bool(self._asked)
        asked = (piece.copy, piece.file, piece.piece) in self._asked
        self._asked.pop((piece.copy, piece.file, piece.piece), None)
        return asked
