"""The newest ledger head and its countersignatures: kept to show a late reader, also when the learner is away.

Keys are free, so countersignatures have places by standing, and each author a pace. Two heads of the learner that
contradict each other are kept for good: they prove that it forks its ledger. Countersignatures are never too old, so
anybody may repeat the earlier ones of another: these have a pace of their own, and displace no later one. Pure.

The final head of a finished run is pushed to peers that join later: no learner is left to tell them.
"""

from __future__ import annotations

from collections import OrderedDict

from p2prl.protocol.envelope import Opened, body_of
from p2prl.protocol.identity import PeerId
from p2prl.protocol.kinds import Kind, Role
from p2prl.protocol.ledger_messages import LedgerHead
from p2prl.protocol.run_end import RunEnd
from p2prl.swarm.gossip.forwarding import AUDIENCE
from p2prl.swarm.token_buckets import KeyedBuckets, Rate


class FinalHead:
    """Knows whether the run has ended, and which peers were sent the final head."""

    def __init__(self) -> None:
        self._run_end = RunEnd()
        self._newest: Opened | None = None
        self._sent_to: set[PeerId] = set()

    def note_head(self, opened: Opened, now: float) -> None:
        """Note an accepted ledger head of the run's learner; other kinds are ignored."""
        head = opened.body
        if not isinstance(head, LedgerHead):
            return
        self._run_end.on_head(head, opened.sent_ms, now=now)
        if self._newest is None or _order(opened) > _order(self._newest):
            self._newest = opened

    def note_policy(self, step: int) -> None:
        """Note an accepted policy manifest of this learner step."""
        self._run_end.on_policy(step)

    def for_peer(self, peer: PeerId, role: Role, now: float) -> bytes:
        """The final head's envelope for a peer that said hello, once per link; else empty."""
        is_over = self._run_end.is_over(now) and self._newest is not None
        if not is_over or peer in self._sent_to or role not in AUDIENCE[Kind.LEDGER_HEAD]:
            return b""
        self._sent_to.add(peer)
        assert self._newest is not None
        return self._newest.raw

    def remove_peer(self, peer: PeerId) -> None:
        """Forget a peer whose link is gone."""
        self._sent_to.discard(peer)


def _order(opened: Opened) -> tuple[int, int, int]:
    head = opened.body
    assert isinstance(head, LedgerHead)
    return head.height, head.step, opened.sent_ms


READERS = frozenset({Role.BOARD, Role.VALIDATOR, Role.SEEDER})
"""Roles that are told at their hello: those that verify the ledger, or serve it to others for long."""

KNOWN_KEPT = 64
"""Countersignatures kept of validators of standing, one of each: 25 kB, and more prove nothing further."""

NEWCOMERS_KEPT = 16
"""Countersignatures kept of all others together."""

HEADS_KEPT = 64
"""Heights whose first head is remembered, to notice a second one: an hour of a learner that updates each minute."""

_PACE = Rate(per_s=1 / 20, burst=4)
"""Of one author. A validator countersigns once a minute, and once more when the run ends."""

_FRESH_S = 120.0
"""Age up to which a countersignature is its author's own: longer than gossip delays one. Others may be repetitions."""

_NEWCOMERS_PACE = Rate(per_s=1.0, burst=32)
"""Of all authors without standing together."""

_AUTHORS = 1_024
"""Authors whose pace is remembered."""


_Kept = OrderedDict[bytes, tuple[tuple[int, int], bytes]]
"""Author → (height of the head, when it was countersigned) and the envelope."""


class HeadWitnesses:
    """What one node knows of the ledger's heads."""

    def __init__(self) -> None:
        self._newest: tuple[tuple[int, int, bool], bytes] | None = None
        self._first_of_height: dict[int, tuple[bytes, bytes]] = {}
        """Height → (digest, envelope) of the first head seen of it; the newest heights."""
        self._fork: tuple[bytes, ...] = ()
        self._known: _Kept = OrderedDict()
        self._newcomers: _Kept = OrderedDict()
        self._paces = KeyedBuckets(_PACE, capacity=_AUTHORS)
        self._newcomers_pace = KeyedBuckets(_NEWCOMERS_PACE, capacity=2)
        self._told: set[PeerId] = set()

    @property
    def fork(self) -> tuple[bytes, ...]:
        """Envelopes of two heads of one height that differ; empty while none are known."""
        return self._fork

    def note_head(self, opened: Opened) -> None:
        """Note an accepted head of the run's learner; other kinds are ignored."""
        head = opened.body
        if not isinstance(head, LedgerHead):
            return
        order = head.height, opened.sent_ms, head.finished
        if self._newest is None or order > self._newest[0]:
            self._newest = order, opened.raw
        digest, first = self._first_of_height.setdefault(head.height, (head.head, opened.raw))
        if digest != head.head and not self._fork:
            self._fork = first, opened.raw
        while len(self._first_of_height) > HEADS_KEPT:
            del self._first_of_height[min(self._first_of_height)]

    def admits(self, opened: Opened, head: Opened, now: float, *, is_known: bool) -> bool:
        """Whether to pass on a checked countersignature of `head`; it is kept then."""
        order = body_of(head, LedgerHead).height, opened.sent_ms
        before = self._known.get(opened.author) or self._newcomers.get(opened.author)
        if before is not None and order <= before[0]:
            return False
        is_fresh = now - opened.sent_ms / 1000 < _FRESH_S
        if not self._paces.take((opened.author, is_fresh), now):
            return False
        if not is_known and not self._newcomers_pace.take(is_fresh, now):
            return False
        self.note_head(head)
        kept, most = (self._known, KNOWN_KEPT) if is_known else (self._newcomers, NEWCOMERS_KEPT)
        for table in (self._known, self._newcomers):
            table.pop(opened.author, None)
        kept[opened.author] = order, opened.raw
        if len(kept) > most:
            kept.popitem(last=False)
        return True

    def for_peer(self, peer: PeerId, role: Role) -> tuple[bytes, ...]:
        """Envelopes for a peer that said hello, once per link: the newest head, its witnesses, and proof of a fork."""
        if peer in self._told or role not in READERS or self._newest is None:
            return ()
        self._told.add(peer)
        witnesses = (raw for kept in (self._known, self._newcomers) for _, raw in kept.values())
        shown = (self._newest[1], *self._fork, *witnesses)
        return tuple(dict.fromkeys(shown))

    def remove_peer(self, peer: PeerId) -> None:
        """Forget a peer whose link is gone."""
        self._told.discard(peer)
