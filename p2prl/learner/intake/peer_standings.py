"""Standing of every peer that delivered a group, by identity: who is known, new, distrusted or excluded.

The counts come from the journal at a start and from each settled group after it. All keys of one owner share one
standing, and one share of everything that standing decides (`identity_of`). A machine has a part in the share from its
delegation on, and in the standing once it has done by itself what makes a key known: it starts at a slot of its choice,
and an owner may have any number of machines.

What makes a peer known to everybody (`protocol/standing.py`), eight good groups, is soon had by any number of fresh
keys. A learner trains on what it gives standing to, so it asks for more of its own: settled work in proportion to the
run, and without gaps. Every missing slot takes back `SETTLED_PER_MISSING` settled groups until it is filled.

Forgeries are held against the key that signed them, which may be stolen, and against its owner only when several of the
owner's keys forge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from p2prl.clock import Clock
from p2prl.learner.intake.batch_caps import Contributor
from p2prl.learner.intake.exclusions import Exclusions, counts_against
from p2prl.protocol.ledger_messages import Receipt
from p2prl.protocol.standing import Rank, Standing, StandingTable, receipt_counts

MAX_REMEMBERED = 65_536
"""Identities remembered, about 20 MB."""

SETTLED_PER_MISSING = 16
"""Settled groups that a missing slot takes back. A key that skips slots to choose among them, four charged for each
group that it chooses freely, would have to settle 64 others for that one."""

SHARE_OF_USUAL = 0.5
"""An identity has full standing from this share of the usual settled work on. Keys that divide between them what
newcomers may have replayed do not reach it."""

MOST_SETTLED = 64.0
"""Settled groups that are enough whatever is usual, so that a slow machine has full standing one day."""

_COUNTED_AFTER = 1 / 16
"""The usual settled work is found anew when this share of all groups has been settled since: it looks at everybody."""


def _own_identity(peer: bytes) -> bytes:
    return peer


class PeerStandings:
    """Standings by identity."""

    def __init__(
        self,
        clock: Clock,
        *,
        identity_of: Callable[[bytes], bytes] = _own_identity,
        charged: Callable[[bytes], int] = lambda _: 0,
        most: int = MAX_REMEMBERED,
    ) -> None:
        """`identity_of` gives the key that stands for a peer's owner, `charged` the missing slots of an identity."""
        self._clock = clock
        self._identity_of = identity_of
        self._charged = charged
        self._usual = 0.0
        self._settled = 0.0
        """Groups settled when `_usual` was found."""
        self._settled_since = 0
        self._table = StandingTable(most, identity_of)
        self._machines = StandingTable(most, _own_identity)
        """Of the machines that work for an owner, what they did by themselves."""
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
            self._count(peer, min(at, now), passed, failed)
        self._find_usual(now)
        for peer, at in forgeries:
            self._confirm(peer, min(at, now))

    def note(self, receipts: Iterable[Receipt], at: float) -> None:
        """Count receipts that were signed at Unix time `at`."""
        for receipt in receipts:
            self._count(receipt.peer, at, *receipt_counts(receipt))

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
        """The class of a peer, now: known with full standing alone."""
        rank = self.of(peer).rank
        return Rank.NEWCOMER if rank is Rank.KNOWN and not self._has_full(self._without_gaps(peer)) else rank

    def contributor(self, peer: bytes) -> Contributor:
        """Whom a peer's groups count for in a batch."""
        standing = self._without_gaps(peer)
        return Contributor(self._identity_of(peer), is_known=self._has_full(standing), is_proven=standing.is_known)

    def identity(self, peer: bytes) -> bytes:
        """The key that stands for a peer's owner."""
        return self._identity_of(peer)

    def _without_gaps(self, peer: bytes) -> Standing:
        """The standing that a peer has here: less what missing slots take back, and none that its owner alone has."""
        identity = self._identity_of(peer)
        if identity != peer and not self._machines.is_known(peer, self._clock.now()):
            return Standing()
        standing = self.of(peer)
        taken = SETTLED_PER_MISSING * self._charged(identity)
        return replace(standing, passed=max(0.0, standing.passed - taken))

    def _has_full(self, standing: Standing) -> bool:
        least = min(MOST_SETTLED, SHARE_OF_USUAL * self._usual)
        return standing.is_known and standing.passed >= least

    def _count(self, peer: bytes, at: float, passed: int, failed: int) -> None:
        identity = self._identity_of(peer)
        self._table.count(peer, at, passed, failed)
        if identity != peer:
            self._machines.count(peer, at, passed, failed)
        self._settled_since += passed
        if self._settled_since > _COUNTED_AFTER * self._settled:
            self._find_usual(at)

    def _find_usual(self, now: float) -> None:
        work = [standing.after(now).passed for standing in self._table.standings()]
        self._settled, self._settled_since, self._usual = sum(work), 0, usual_work(work)

    def _confirm(self, peer: bytes, now: float) -> None:
        owner = self._identity_of(peer)
        if owner != peer and not self._keys.has_forged(peer, now):
            self._owners.confirm(owner, now)  # for each of its keys once
        self._keys.confirm(peer, now)


def usual_work(settled: Iterable[float]) -> float:
    """Settled groups of the identities that half of all groups are of, of the least of them.

    Any number of keys with little work changes it little, and one with much work not at all, up to half of the run.
    """
    ranked = sorted(settled, reverse=True)
    half, above = sum(ranked) / 2, 0.0
    for each in ranked:
        above += each
        if above >= half:
            return each
    return 0.0
