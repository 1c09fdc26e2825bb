"""Bound on the owners' statements a node passes on: by link, by owner, by machine, and over all.

Keys are free, so a stranger can sign any number of statements. An honest machine sends its own few
again every ten minutes until the run is over, so a statement that is dropped here is only late. Not so a revocation:
the first news about a pair whose delegation was passed on counts nowhere. Pure.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

from p2prl.protocol.delegation import Delegation, Revocation
from p2prl.protocol.envelope import Opened
from p2prl.protocol.identity import PeerId
from p2prl.protocol.limits import MAX_DELEGATES_PER_OWNER
from p2prl.protocol.membership_statements import Membership, OwnersStatement

WINDOW_S = 300.0
"""The counts begin anew this often: twice between two sendings of an honest machine."""

MAX_PER_LINK = 64
"""Statements from one link in a window, so that one link's flood leaves room for the others: a carrier of a large
swarm passes on those of about half as many machines."""

MAX_PER_OWNER = 2 * MAX_DELEGATES_PER_OWNER
"""Delegations of one owner in a window, or other statements of one sender: twice the machines an owner may have."""

MAX_PER_MACHINE = 4
"""Delegations of one machine by one owner in a window, revocations of one machine by one sender, and memberships that
one machine sends."""

MAX_IN_ALL = 4_096
"""Statements in a window, over all links: about 2 MB in five minutes, and the size of this table."""

FIRST_OF_PLACE = 8
"""Statements of one place in a window that are passed on beyond that: those of two machines and their owner. A flood
pays for more with addresses."""

KNOWN_PAIRS = 16_384
"""Pairs of owner and machine remembered: four windows of nothing but new ones. Honest machines name theirs in every
second window."""


class StatementQuota:
    """Counts the statements of the present window."""

    def __init__(self) -> None:
        self._ends_at = 0.0
        self._all = 0
        self._by_link: Counter[PeerId] = Counter()
        self._by_place: Counter[str] = Counter()
        self._by_owner: Counter[bytes] = Counter()
        self._by_machine: Counter[tuple[bytes, bytes]] = Counter()
        self._revoked: OrderedDict[tuple[bytes, bytes], int] = OrderedDict()
        """Known pairs of owner and machine → serial of the newest revocation that was passed on, −1 for none."""
        self._news: set[tuple[bytes, bytes]] = set()
        """Pairs with a revocation in this window that counts nowhere."""

    def allows(self, opened: Opened, source: PeerId, now: float, *, place: str) -> bool:
        """Whether a checked statement of an owner from a link is passed on; it is counted then.

        `place` is what the link counts for beside itself: its subnet, or a peer of standing alone.
        """
        statement = opened.body
        assert isinstance(statement, OwnersStatement)
        # Anybody may send another's revocation or membership, and must not use up that one's places: these count for
        # their sender. A delegation comes from its machine alone.
        owner = statement.owner if isinstance(statement, Delegation) else opened.author
        machine = opened.author if isinstance(statement, Membership) else statement.delegate
        if now >= self._ends_at:
            self._ends_at, self._all = now + WINDOW_S, 0
            for counts in (self._by_link, self._by_place, self._by_owner, self._by_machine, self._news):
                counts.clear()
        if isinstance(statement, Revocation) and self._is_news(statement):
            return True
        if (
            (self._all >= MAX_IN_ALL and self._by_place[place] >= FIRST_OF_PLACE)
            or self._by_link[source] >= MAX_PER_LINK
            or self._by_owner[owner] >= MAX_PER_OWNER
            or self._by_machine[owner, machine] >= MAX_PER_MACHINE
        ):
            return False
        self._all += 1
        self._by_link[source] += 1
        self._by_place[place] += 1
        self._by_owner[owner] += 1
        self._by_machine[owner, machine] += 1
        if isinstance(statement, Delegation):
            self._remember(owner, machine)
        return True

    def _is_news(self, revocation: Revocation) -> bool:
        """Whether a known machine is revoked by a newer statement than before, the first of this window."""
        pair = revocation.owner, revocation.delegate
        if pair in self._news or revocation.serial <= self._revoked.get(pair, revocation.serial):
            return False
        self._news.add(pair)
        self._revoked[pair] = revocation.serial
        return True

    def _remember(self, owner: bytes, machine: bytes) -> None:
        self._revoked.setdefault((owner, machine), -1)
        self._revoked.move_to_end((owner, machine))
        if len(self._revoked) > KNOWN_PAIRS:
            self._revoked.popitem(last=False)
