"""Owners of the peers and their teams, from the statements they send: kept in memory until earned, then in the ledger.

A delegation or a membership enters the ledger when the machine that sent it has work there: a verified group, or a
verdict that the learner's check confirmed. A revocation enters when a delegation of the same machine and owner is
there. So no key gets an entry for nothing. Machines send all of them again every ten minutes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from p2prl.clock import Clock
from p2prl.learner.journal.journal import Journal
from p2prl.protocol.delegation import Delegation, Revocation
from p2prl.protocol.envelope import Opened, body_of, open_envelope
from p2prl.protocol.membership_statements import Membership
from p2prl.protocol.ownership import Ownership
from p2prl.protocol.team_membership import Teams

MAX_WAITING = 4_096
"""Delegations of machines without work yet, over all keys, and as many memberships: 4 MB. The one that came longest ago
is dropped; an honest machine sends its own again."""


class Owners:
    """The ledger's statements of owners, and the delegations and memberships that wait for checked work."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self._ownership = Ownership()
        self._teams = Teams(self._ownership)
        self._waiting: OrderedDict[bytes, Opened] = OrderedDict()
        """Delegations by machine."""
        self._waiting_members: OrderedDict[bytes, Opened] = OrderedDict()
        """Memberships by the machine that sent them."""
        for raw in journal.statements.envelopes():
            self._take(open_envelope(raw, now=None))

    def identity_of(self, peer: bytes) -> bytes:
        """Public key of a peer's owner now, or the peer's own: the identity that caps and accounts count.

        A delegation that waits counts too: else each machine without work would have places of its own.
        """
        now_ms = self._now_ms()
        owner = self._ownership.owner_at(peer, now_ms)
        if owner == peer and (waiting := self._waiting.get(peer)) is not None:
            delegation = body_of(waiting, Delegation)
            return delegation.owner if delegation.covers(now_ms) else peer
        return owner

    def receive(self, statements: Sequence[Opened]) -> bool:
        """Take in checked statements. True when the ledger has grown."""
        if not statements:
            return False
        height = self._journal.ledger.height
        with self._journal.transaction():
            for opened in statements:
                if isinstance(opened.body, Revocation):
                    self._revoke(opened, opened.body)
                elif isinstance(opened.body, Membership):
                    self._join(opened, opened.body)
                else:
                    self._delegate(opened, body_of(opened, Delegation))
        return self._journal.ledger.height > height

    def enter(self, peers: Iterable[bytes]) -> None:
        """Enter what waits of peers that have checked work now. Belongs inside `Journal.transaction`."""
        for peer in dict.fromkeys(peers):
            for waiting in (self._waiting, self._waiting_members):  # in this order: a machine speaks for its owner
                if (opened := waiting.pop(peer, None)) is not None:
                    self._enter(opened)

    def _delegate(self, opened: Opened, delegation: Delegation) -> None:
        if delegation.expires_ms <= self._now_ms():
            return
        if self._journal.statements.has_work(delegation.delegate):
            self._waiting[delegation.delegate] = opened
            self.enter([delegation.delegate])
            return
        known = self._waiting.get(delegation.delegate)
        if known is None or body_of(known, Delegation).serial < delegation.serial:
            _keep(self._waiting, delegation.delegate, opened)

    def _join(self, opened: Opened, membership: Membership) -> None:
        known = self._waiting_members.get(opened.author)
        if known is not None and body_of(known, Membership).serial >= membership.serial:
            return
        is_own = self._ownership.works_for(opened.author, membership.member)
        if is_own and self._journal.statements.has_work(opened.author):
            self._waiting_members.pop(opened.author, None)
            self._enter(opened)
        else:  # its delegation may still come
            _keep(self._waiting_members, opened.author, opened)

    def _revoke(self, opened: Opened, revocation: Revocation) -> None:
        waiting = self._waiting.get(revocation.delegate)
        if waiting is not None:
            delegation = body_of(waiting, Delegation)
            if delegation.owner == revocation.owner and revocation.voids(delegation, self._now_ms()):
                del self._waiting[revocation.delegate]
        self._enter(opened)

    def _enter(self, opened: Opened) -> None:
        """Append a statement to the ledger, unless a reader would ignore it there."""
        if self._take(opened) is None:
            self._journal.statements.append(opened.raw)

    def _take(self, opened: Opened) -> str | None:
        if isinstance(opened.body, Revocation):
            return self._ownership.revoke(opened.body)
        if isinstance(opened.body, Membership):
            return self._teams.take(opened.body, opened.author, after_ms=0)  # which work it covers, readers tell
        return self._ownership.delegate(body_of(opened, Delegation))

    def _now_ms(self) -> int:
        return int(self._clock.now() * 1000)


def _keep(waiting: OrderedDict[bytes, Opened], machine: bytes, opened: Opened) -> None:
    """Let a statement wait; the one that came longest ago makes way."""
    waiting[machine] = opened
    waiting.move_to_end(machine)
    if len(waiting) > MAX_WAITING:
        waiting.popitem(last=False)
