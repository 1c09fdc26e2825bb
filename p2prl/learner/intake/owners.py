"""Owners of the peers, from the delegations they send: kept in memory until earned, then entered in the ledger.

A delegation enters the ledger when its machine has a verified group, and a revocation when a delegation of the same
machine and owner is there, so that no key gets an entry for nothing. Machines send both again every ten minutes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from p2prl.clock import Clock
from p2prl.learner.journal.journal import Journal
from p2prl.protocol.delegation import Delegation, Revocation
from p2prl.protocol.envelope import Opened, body_of, open_envelope
from p2prl.protocol.ownership import Ownership

MAX_WAITING = 4_096
"""Delegations of machines without a verified group, over all keys: 2 MB. The one that came longest ago is dropped; an
honest machine sends its own again."""


class Owners:
    """The ledger's delegations and revocations, and the delegations that wait for a verified group."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self._ownership = Ownership()
        self._waiting: OrderedDict[bytes, Opened] = OrderedDict()
        for raw in journal.statements.envelopes():
            self._take(open_envelope(raw, now=None))

    def identity_of(self, peer: bytes) -> bytes:
        """Public key of a peer's owner now, or the peer's own: the identity that caps count."""
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
                else:
                    self._delegate(opened, body_of(opened, Delegation))
        return self._journal.ledger.height > height

    def enter(self, peers: Iterable[bytes]) -> None:
        """Enter the delegations of peers that have a verified group now. Belongs inside `Journal.transaction`."""
        for peer in dict.fromkeys(peers):
            if (opened := self._waiting.pop(peer, None)) is not None:
                self._enter(opened)

    def _delegate(self, opened: Opened, delegation: Delegation) -> None:
        if delegation.expires_ms <= self._now_ms():
            return
        if self._journal.statements.has_verified_group(delegation.delegate):
            self._enter(opened)
            return
        known = self._waiting.get(delegation.delegate)
        if known is not None and body_of(known, Delegation).serial >= delegation.serial:
            return
        self._waiting[delegation.delegate] = opened
        self._waiting.move_to_end(delegation.delegate)
        if len(self._waiting) > MAX_WAITING:
            self._waiting.popitem(last=False)

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
        return self._ownership.delegate(body_of(opened, Delegation))

    def _now_ms(self) -> int:
        return int(self._clock.now() * 1000)
