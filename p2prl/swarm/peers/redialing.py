"""Redialing: which known addresses to try while this node is short of the peers it needs. Pure.

Named addresses are those its owner gave: the join link's, and those of `--peers`. They are tried every few seconds,
since the learner at one of them may be starting again; so are those found on the local network. A list on the web is
read again when that does not help.
Remembered ones (`p2prl.swarm.peers.peer_memory`) are strangers of earlier days, so each waits longer after every
failure. The directory does not replace this: a learner that has just started knows nobody, and a node whose neighbors
are all gone has no directory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from p2prl.clock import backoff_s
from p2prl.protocol.identity import PeerId
from p2prl.swarm.ports import Randomness

NamedAddress = tuple[PeerId, str]
"""A peer, and a multiaddr that ends in its id."""

EAGER_S = 3.0
"""How often a named address is tried while the learner may be back within seconds."""

PATIENT_S = 20.0
"""The same for a learner that has been away for longer."""

_EAGER_FOR_S = 300.0
"""A learner gone for longer is not expected back within seconds."""

ENOUGH_LINKS = 4
"""With that many neighbors the directory is in reach: no remembered stranger is tried."""

LIST_AFTER_S = 60.0
"""A learner that restarts is back earlier; one that has moved may have said so in its owner's list."""

LIST_AGAIN_S = 300.0
"""The list is read again this often: a web server notices nothing of a thousand homes that do so."""

AT_ONCE = 8
"""Dials under way together: a dead address takes 15 s, and must not keep the others waiting."""

_FIRST_S, _LONGEST_S = 3.0, 300.0
"""A remembered address waits 3 s after its first failure, and 5 minutes at most: all 64 peers that may be remembered
then cost a dial every five seconds."""


@dataclass(slots=True)
class _Attempts:
    failures: int = 0
    tried_at: float = float("-inf")
    not_before: float = float("-inf")
    dialing: bool = False


class Redialer:
    """Attempts so far, and the addresses that are due."""

    def __init__(self, named: Sequence[NamedAddress], rng: Randomness, now: float, *, is_learner: bool) -> None:
        """`is_learner` says that this node is the run's learner: it needs neighbors, and no learner."""
        self._named = tuple(named)
        self._rng = rng
        self._is_learner = is_learner
        self._satisfied_at = now
        self._listed: tuple[NamedAddress, ...] = ()
        self._listed_at = float("-inf")
        self._nearby: tuple[NamedAddress, ...] = ()
        self._attempts: dict[str, _Attempts] = {}

    def wants(self, now: float, *, has_learner: bool, links: int) -> bool:
        """Whether anybody should be dialed: the learner is missing, or this learner has few neighbors."""
        wanted = links < ENOUGH_LINKS if self._is_learner else not has_learner
        if not wanted:
            self._satisfied_at = now
        return wanted

    def wants_list(self, now: float) -> bool:
        """Whether the list of further peers should be read again: nobody known has led to the learner for a minute. A
        learner reads its list in any case: its owner writes a new seeder there, which nobody who is linked may know.

        A true answer counts as a reading. Ask after `wants`.
        """
        is_content = now - self._satisfied_at < LIST_AFTER_S and not self._is_learner
        if is_content or now - self._listed_at < LIST_AGAIN_S:
            return False
        self._listed_at = now
        return True

    def take_list(self, listed: Sequence[NamedAddress]) -> None:
        """Dial these too; they replace those of the last reading."""
        self._listed = tuple(listed)

    def take_nearby(self, found: Sequence[NamedAddress]) -> None:
        """Dial these too, which were found on the local network; they replace those of the last search."""
        self._nearby = tuple(found)

    def due(
        self,
        remembered: Sequence[NamedAddress],
        now: float,
        *,
        learner: PeerId | None,
        has_learner: bool,
        links: int,
        is_linked: Callable[[PeerId], bool],
    ) -> list[str]:
        """Addresses to dial now; each must be reported with `reached` or `failed`.

        `has_learner` says that a link to the learner is up, `links` counts all links. Peers that are linked are left
        out, but for the learner while `has_learner` is false: such a link is dead or has not begun.
        """
        if self.wants(now, has_learner=has_learner, links=links):
            strangers = remembered if links < ENOUGH_LINKS else [item for item in remembered if item[0] == learner]
            known = (*self._named, *self._nearby, *self._listed, *strangers)
        elif self._is_learner:
            known = self._listed
        else:
            return []
        offered = {address: peer for peer, address in known}
        self._attempts = {
            address: tried for address, tried in self._attempts.items() if address in offered or tried.dialing
        }
        free = AT_ONCE - sum(tried.dialing for tried in self._attempts.values())
        ready = [
            address
            for address, peer in offered.items()
            if (peer == learner or not is_linked(peer)) and self._is_due(address, now)
        ]
        # Those tried least recently first, so that many dead addresses keep none from its turn.
        ready.sort(key=lambda address: self._of(address).tried_at)
        chosen = ready[: max(0, free)]
        for address in chosen:
            tried = self._of(address)
            tried.tried_at, tried.dialing = now, True
        return chosen

    def reached(self, address: str, now: float) -> None:
        """The peer answered."""
        tried = self._of(address)
        tried.dialing, tried.failures, tried.not_before = False, 0, now + EAGER_S

    def failed(self, address: str, now: float) -> None:
        """It did not."""
        tried = self._of(address)
        tried.dialing = False
        tried.failures += 1
        if any(address == named for _, named in (*self._named, *self._nearby, *self._listed)):
            tried.not_before = now + self._pause_s(now)
        else:
            tried.not_before = now + backoff_s(tried.failures, base_s=_FIRST_S, cap_s=_LONGEST_S, rng=self._rng)

    def _pause_s(self, now: float) -> float:
        return PATIENT_S if now - self._satisfied_at > _EAGER_FOR_S else EAGER_S

    def _is_due(self, address: str, now: float) -> bool:
        tried = self._attempts.get(address)
        return tried is None or (not tried.dialing and tried.not_before <= now)

    def _of(self, address: str) -> _Attempts:
        return self._attempts.setdefault(address, _Attempts())
