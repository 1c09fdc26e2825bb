"""Limits of arriving groups: how many are stored of one key, and of all keys without standing together. Pure.

What a group costs the learner begins when it is stored: disk, a check, and a receipt that stays in the ledger for good.
So a flood is stopped before. A limit that only keeps newcomers from crowding out known peers binds only while there are
some: in a swarm of newcomers nobody is held up. A peer that is turned away offers the group again later.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from p2prl.learner.intake.replay_backlog import Held
from p2prl.protocol import limits
from p2prl.protocol.standing import Rank

GROUPS_PER_S = 32.0
"""New groups of one key that are stored a second, in the long run: far more than a learner trains on."""

GROUPS_AT_ONCE = 512
"""New groups of one key that are stored at once, before that rate binds: what a volunteer has in its spool after an
outage, and twice what may wait."""

NEWCOMER_GROUPS_PER_S = 8.0
"""New groups of all newcomers together a second while known peers deliver: sixty honest newcomers deliver what a
place in training takes in a minute, and the receipts of a flood are 90 MB of ledger a day at most."""

NEWCOMER_GROUPS_AT_ONCE = 256
"""New groups of all newcomers together before that rate binds: eight each of thirty honest newcomers."""

KNOWN_ACTIVE_S = 60.0
"""How long after a group of a known peer the newcomers' rate binds."""

MAX_WAITING = {Rank.NEWCOMER: 2_048, Rank.DISTRUSTED: 256}
"""Groups that may wait for a check of all peers of a class together. Of newcomers, more than a learner checks in
minutes; of peers whose groups mostly failed, a few, and none of them keeps a newcomer's out."""

MAX_WAITING_BYTES = limits.MAX_UNCHECKED_BYTES // 4
"""Bytes of the groups that may wait of all peers of such a class together: room stays for known peers."""

LEAST_WAITING = 8
"""Groups of one newcomer that may wait however many others there are: as many as give it standing."""

MAX_KEYS = 4_096
"""Keys whose rates are remembered; the one that delivered longest ago is forgotten first. All are bounded together."""


class TokenBucket:
    """Allows a rate, and a number at once."""

    def __init__(self, rate: float, most: float, now: float) -> None:
        self._rate = rate
        self._most = most
        self._left = most
        self._at = now

    def take(self, now: float) -> bool:
        """Take one, if there is one."""
        self._left = min(self._most, self._left + self._rate * max(0.0, now - self._at))
        self._at = max(self._at, now)
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class ArrivalLimits:
    """Decides which arriving groups are stored."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[bytes, TokenBucket] = OrderedDict()
        self._newcomers: TokenBucket | None = None
        self._known_at = float("-inf")
        """When a group of a known peer was stored last."""

    def has_room(self, rank: Rank, mine: Held, size_bytes: int, waiting: Mapping[Rank, tuple[int, Held]]) -> bool:
        """Whether one more group of `size_bytes` may wait for its check: of a peer of this class of which `mine` waits,
        while of each class this many peers' groups wait (`ReplayBacklog.held_by_rank`)."""
        if mine.groups >= limits.MAX_UNCHECKED_GROUPS_PER_PEER:
            return False
        if rank is Rank.KNOWN:
            return True
        peers, held = waiting[rank]
        most = MAX_WAITING[rank]
        fair = most // max(1, peers + (not mine.groups))
        return (
            held.groups < most
            and held.size_bytes + size_bytes <= MAX_WAITING_BYTES
            and mine.groups < max(LEAST_WAITING, fair)
        )

    def take(self, identity: bytes, rank: Rank, now: float) -> bool:
        """Count one new group, if the rates allow it at `now`."""
        is_known = rank is Rank.KNOWN
        if is_known:
            self._known_at = now
        bucket = self._buckets.setdefault(identity, TokenBucket(GROUPS_PER_S, GROUPS_AT_ONCE, now))
        self._buckets.move_to_end(identity)
        if len(self._buckets) > MAX_KEYS:
            self._buckets.popitem(last=False)
        if not bucket.take(now):
            return False
        if self._newcomers is None:
            self._newcomers = TokenBucket(NEWCOMER_GROUPS_PER_S, NEWCOMER_GROUPS_AT_ONCE, now)
        return is_known or now - self._known_at > KNOWN_ACTIVE_S or self._newcomers.take(now)
