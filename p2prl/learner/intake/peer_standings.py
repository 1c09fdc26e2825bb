"""Standing of every peer that delivered a group, by identity: who is known, new, distrusted or excluded.

The counts come from the journal at a start and from each settled group after it. All keys of one owner share one
standing, and one share of everything that standing decides (`identity_of`). Forgeries are held against the key that
signed them, which may be stolen, and against its owner only when several of the owner's keys forge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from p2prl.clock import Clock
from p2prl.learner.intake.batch_caps import Contributor
from p2prl.learner.intake.exclusions import Exclusions, counts_against
from p2prl.protocol.ledger_messages import Receipt
from p2prl.protocol.standing import Rank, Standing, StandingTable

MAX_REMEMBERED = 65_536
"""Identities remembered, about 20 MB."""


def _own_identity(peer: bytes) -> bytes:
    return peer


class PeerStandings:
    """Standings by identity."""

    def __init__(
        self,
        clock: Clock,
        *,
        identity_of: Callable[[bytes], bytes] = _own_identity,
        most: int = MAX_REMEMBERED,
    ) -> None:
        """`identity_of` gives the key that stands for a peer's owner."""
        self._clock = clock
        self._identity_of = identity_of
        self._table = StandingTable(most, identity_of)
        self._keys, self._owners = Exclusions(), Exclusions()

    def __len__(self) -> int:
        """Identities remembered."""
        return len(self._table)

    def restore(
        self, history: Iterable[tuple[bytes, float, int, int]], forgeries: Iterable[tuple[bytes, float]] = ()
    ) -> None:
        """Count the past: (peer, Unix time, groups passed, groups failed), and (peer, Unix time) of the forgeries held
        against a peer, both in order of time. Times to come are of a clock that was wrong, and count as now."""
        now = self._clock.now()
        for peer, at, passed, failed in history:
            self._table.count(peer, min(at, now), passed, failed)
        for peer, at in forgeries:
            self._confirm(peer, min(at, now))

    def note(self, receipts: Iterable[Receipt], at: float) -> None:
        """Count receipts that were signed at Unix time `at`."""
        self._table.note_receipts(receipts, at)

    def forged(self, peer: bytes) -> bool:
        """Hold a confirmed forgery against a peer, whose group was counted as failed before. False when the peer's good
        groups outweigh it."""
        if not counts_against(self.of(peer)):
            return False
        self._confirm(peer, self._clock.now())
        return True

    def is_excluded(self, peer: bytes) -> bool:
        """Whether a peer's groups are turned away unchecked, now."""
        now = self._clock.now()
        return self._keys.is_excluded(peer, now) or self._owners.is_excluded(self._identity_of(peer), now)

    def tells(self, peer: bytes) -> bool:
        """Whether to answer one more group of an excluded peer with a receipt."""
        is_own = self._keys.is_excluded(peer, self._clock.now())
        return self._keys.tells(peer) if is_own else self._owners.tells(self._identity_of(peer))

    def of(self, peer: bytes) -> Standing:
        """The standing of a peer's identity, now."""
        return self._table.of(self._identity_of(peer)).after(self._clock.now())

    def rank(self, peer: bytes) -> Rank:
        """The class of a peer, now."""
        return self.of(peer).rank

    def contributor(self, peer: bytes) -> Contributor:
        """Whom a peer's groups count for in a batch."""
        return Contributor(self._identity_of(peer), is_known=self.of(peer).is_known)

    def identity(self, peer: bytes) -> bytes:
        """The key that stands for a peer's owner."""
        return self._identity_of(peer)

    def _confirm(self, peer: bytes, now: float) -> None:
        owner = self._identity_of(peer)
        if owner != peer and not self._keys.has_forged(peer, now):
            self._owners.confirm(owner, now)  # for each of its keys once
        self._keys.confirm(peer, now)
