"""Standing of every peer that delivered a group, by identity: who is known, new, distrusted or excluded.

The counts come from the journal at a start and from each settled group after it. All keys of one owner share one
standing, and one share of everything that standing decides (`identity_of`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from enum import Enum, auto

from p2prl.clock import Clock
from p2prl.learner.intake.batch_caps import Contributor
from p2prl.learner.intake.exclusions import Exclusions, counts_against
from p2prl.protocol.standing import Standing

MAX_REMEMBERED = 65_536
"""Identities remembered, about 20 MB: those heard of longest ago are forgotten first, and of them those that are not
known, since any number of fresh keys can be made."""

_NONE = Standing()


class Rank(Enum):
    """Classes of peers, by what came of their groups."""

    NEWCOMER = auto()
    KNOWN = auto()
    DISTRUSTED = auto()
    """More of its groups failed than passed."""


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
        self._most = most
        self._standings: OrderedDict[bytes, Standing] = OrderedDict()
        self._exclusions = Exclusions()

    def __len__(self) -> int:
        """Identities remembered."""
        return len(self._standings)

    def restore(
        self, history: Iterable[tuple[bytes, float, int, int]], forgeries: Iterable[tuple[bytes, float]] = ()
    ) -> None:
        """Count the past: (peer, Unix time, groups passed, groups failed), and (peer, Unix time) of the forgeries held
        against a peer, both in order of time. Times to come are of a clock that was wrong, and count as now."""
        now = self._clock.now()
        for peer, at, passed, failed in history:
            self._count(peer, min(at, now), passed=passed, failed=failed)
        for peer, at in forgeries:
            self._exclusions.confirm(self._identity_of(peer), min(at, now))

    def passed(self, peer: bytes) -> None:
        """A group of a peer passed its checks."""
        self._count(peer, self._clock.now(), passed=1)

    def failed(self, peer: bytes) -> None:
        """A group of a peer was rejected, and not for something that is nobody's fault."""
        self._count(peer, self._clock.now(), failed=1)

    def forged(self, peer: bytes) -> bool:
        """Hold a confirmed forgery against a peer, whose group was counted as failed before. False when the peer's good
        groups outweigh it."""
        if not counts_against(self.of(peer)):
            return False
        self._exclusions.confirm(self._identity_of(peer), self._clock.now())
        return True

    def is_excluded(self, peer: bytes) -> bool:
        """Whether a peer's groups are turned away unchecked, now."""
        return self._exclusions.is_excluded(self._identity_of(peer), self._clock.now())

    def tells(self, peer: bytes) -> bool:
        """Whether to answer one more group of an excluded peer with a receipt."""
        return self._exclusions.tells(self._identity_of(peer))

    def of(self, peer: bytes) -> Standing:
        """The standing of a peer's identity, now."""
        standing = self._standings.get(self._identity_of(peer))
        return _NONE if standing is None else standing.after(self._clock.now())

    def rank(self, peer: bytes) -> Rank:
        """The class of a peer, now."""
        standing = self.of(peer)
        if standing.failed > standing.passed:
            return Rank.DISTRUSTED
        return Rank.KNOWN if standing.is_known else Rank.NEWCOMER

    def contributor(self, peer: bytes) -> Contributor:
        """Whom a peer's groups count for in a batch."""
        return Contributor(self._identity_of(peer), is_known=self.of(peer).is_known)

    def identity(self, peer: bytes) -> bytes:
        """The key that stands for a peer's owner."""
        return self._identity_of(peer)

    def _count(self, peer: bytes, at: float, *, passed: int = 0, failed: int = 0) -> None:
        identity = self._identity_of(peer)
        standing = self._standings.pop(identity, Standing(at=at))
        self._standings[identity] = standing.after(at, passed=passed, failed=failed)
        if len(self._standings) > self._most:
            unknown = (each for each, counts in self._standings.items() if not counts.is_known)
            del self._standings[next(unknown, next(iter(self._standings)))]
