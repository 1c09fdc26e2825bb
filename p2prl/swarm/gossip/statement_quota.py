"""Bound on the owners' statements a node passes on: by link, by owner, by machine, and over all.

Keys are free, so a stranger can sign any number of statements. An honest machine sends its own few
again every ten minutes until the run is over, so a statement that is dropped here is only late. Pure.
"""

from __future__ import annotations

from collections import Counter

from p2prl.protocol.delegation import Delegation
from p2prl.protocol.envelope import Opened
from p2prl.protocol.identity import PeerId
from p2prl.protocol.limits import MAX_DELEGATES_PER_OWNER
from p2prl.protocol.membership import Membership, OwnersStatement

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


class StatementQuota:
    """Counts the statements of the present window."""

    def __init__(self) -> None:
        self._ends_at = 0.0
        self._all = 0
        self._by_link: Counter[PeerId] = Counter()
        self._by_owner: Counter[bytes] = Counter()
        self._by_machine: Counter[tuple[bytes, bytes]] = Counter()

    def allows(self, opened: Opened, source: PeerId, now: float) -> bool:
        """Whether a checked statement of an owner from a link is passed on; it is counted then."""
        statement = opened.body
        assert isinstance(statement, OwnersStatement)
        # Anybody may send another's revocation or membership, and must not use up that one's places: these count for
        # their sender. A delegation comes from its machine alone.
        owner = statement.owner if isinstance(statement, Delegation) else opened.author
        machine = opened.author if isinstance(statement, Membership) else statement.delegate
        if now >= self._ends_at:
            self._ends_at, self._all = now + WINDOW_S, 0
            for counts in (self._by_link, self._by_owner, self._by_machine):
                counts.clear()
        if (
            self._all >= MAX_IN_ALL
            or self._by_link[source] >= MAX_PER_LINK
            or self._by_owner[owner] >= MAX_PER_OWNER
            or self._by_machine[owner, machine] >= MAX_PER_MACHINE
        ):
            return False
        self._all += 1
        self._by_link[source] += 1
        self._by_owner[owner] += 1
        self._by_machine[owner, machine] += 1
        return True
