"""Admission to a full table of links: which peer gets a place, and whose it takes. Pure.

While there is room everybody is linked, however many come from one address. In a full table each class of peers has a
share of the places, and within a class the subnets have equal shares: a peer whose subnet holds fewer places than
another takes one of the other's at once. Peers whose subnet is full already wait, and every two seconds some of them,
drawn at random, take the places of the peers that were least useful; those wait in turn, since their connections are
still there. So a stranger with a thousand keys of one subnet
cannot keep a newcomer out, not even one of the same subnet; a flood of subnets costs the newcomer some turns. The
learner, and the peers this node chose itself, always get a place and keep it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from p2prl.protocol.identity import PeerId
from p2prl.swarm.peers.subnets import Subnet, fullest
from p2prl.swarm.ports import Randomness
from p2prl.swarm.random_choice import draw, draw_one
from p2prl.swarm.token_buckets import KeyedBuckets, Rate

TURN_S = 2.0
"""Period of the draw among waiting peers."""

TURN_LINKS = 64
"""Places that change hands in one draw: a thousand waiting keys leave a newcomer a chance of six in seven within a
minute."""

LEAST_STAY_S = 20.0
"""How long a drawn peer keeps its place at least: time for a hello, the manifest and a first group."""

USEFUL_STAY_S = 45.0
"""The same for a peer that was useful lately. Not forever: a valid signature makes a group look useful at first."""

USEFUL_S = 300.0
"""How long a peer counts as useful after it brought something new: a home machine samples one long group in minutes."""

WAITING = 256
"""Peers that may wait. Past it one of the subnet that waits with most is dropped; it may come again."""

WAIT_S = 60.0
"""How long a peer waits without another sign of life."""

_SCANS = Rate(per_s=32.0, burst=64.0)
"""Immediate decisions in a full table: each looks at every link. Further peers wait for the next draw."""


class LinkClass(IntEnum):
    """Classes of peers, by what this node knows of them."""

    NEWCOMER = 0
    VALIDATOR = 1
    """Says so itself. The class has a small share of its own, so a false claim gains nothing elsewhere."""
    KNOWN = 2
    """By standing: the learner has verified its work."""
    CHOSEN = 3
    """Dialed by this node, or introduced by the learner."""
    LEARNER = 4


SHARES = {LinkClass.NEWCOMER: 0.25, LinkClass.VALIDATOR: 0.125, LinkClass.KNOWN: 0.5}
"""Share of the places that each class keeps in a full table; the rest is for the learner and chosen peers."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a linked peer, or one that asks for a link, has to show."""

    kind: LinkClass
    subnet: Subnet
    since: float
    """When its link, or its wait, began."""
    useful_at: float = -math.inf
    """When it last brought something new and valid."""

    def is_useful(self, now: float) -> bool:
        """Whether it was useful lately."""
        return now - self.useful_at < USEFUL_S


Claims = Mapping[PeerId, Claim]


def victim_for(claim: Claim, links: Claims, *, places: int, now: float) -> PeerId | None:
    """The linked peer that makes room at once in a full table, or None: the peer has to wait."""
    counts = Counter(link.kind for link in links.values())
    excess = {kind: counts[kind] - share * places for kind, share in SHARES.items() if counts[kind]}
    if not excess:  # nobody but the learner and chosen peers
        return _least_useful(links, LinkClass.CHOSEN, now) if claim.kind is LinkClass.LEARNER else None
    if claim.kind >= LinkClass.CHOSEN or counts[claim.kind] < math.floor(SHARES[claim.kind] * places):
        return _least_useful(links, max(excess, key=lambda kind: (excess[kind], -kind)), now)
    own = [link.subnet for link in links.values() if link.kind is claim.kind]
    crowded = fullest(own)
    most = sum(subnet in crowded for subnet in own) // max(1, len(crowded))
    if own.count(claim.subnet) + 1 < most:
        return _least_useful(links, claim.kind, now)
    return None


def _least_useful(links: Claims, kind: LinkClass, now: float, *, may_stay: bool = False) -> PeerId | None:
    """The least useful peer of a class: of its fullest subnet, without use lately, linked longest.

    `may_stay` leaves out those whose time is not over.
    """
    in_class = {peer: link for peer, link in links.items() if link.kind is kind}
    crowded = fullest(link.subnet for link in in_class.values())
    candidates = [
        peer
        for peer, link in in_class.items()
        if link.subnet in crowded
        and not (may_stay and now - link.since < (USEFUL_STAY_S if link.is_useful(now) else LEAST_STAY_S))
    ]
    return min(candidates, key=lambda p: (in_class[p].is_useful(now), in_class[p].since), default=None)


class LinkAdmission:
    """Places in one node's table of links, and the peers that wait for one."""

    def __init__(self, rng: Randomness, places: int) -> None:
        self._rng = rng
        self._places = places
        self._waiting: dict[PeerId, Claim] = {}
        self._scans = KeyedBuckets(_SCANS, capacity=1)
        self._next_turn = math.inf

    @property
    def waiting(self) -> int:
        """Peers that wait."""
        return len(self._waiting)

    def ask(self, peer: PeerId, claim: Claim, links: Callable[[], Claims], now: float) -> tuple[bool, PeerId | None]:
        """(whether the peer is linked now, the peer that loses its place to it) in a full table.

        `links` is called only for a decision: a waiting peer costs no more than the look-up.
        """
        if peer in self._waiting and claim.kind < LinkClass.CHOSEN:
            self._waiting[peer] = claim
            return False, None
        if claim.kind >= LinkClass.CHOSEN or self._scans.take(None, now):
            claims = links()
            victim = victim_for(claim, claims, places=self._places, now=now)
            if victim is not None:
                self._waiting.pop(peer, None)
                self._wait(victim, replace(claims[victim], since=now), now)
                return True, victim
        self._wait(peer, claim, now)
        return False, None

    def next_deadline(self) -> float:
        """When `take_turn` is due; ∞ while nobody waits."""
        return self._next_turn

    def take_turn(self, links: Claims, now: float) -> list[tuple[PeerId, PeerId | None]]:
        """(peer that is linked now, the one that loses its place to it) of this turn; empty between turns."""
        if now < self._next_turn:
            return []
        self._waiting = {peer: claim for peer, claim in self._waiting.items() if now - claim.since < WAIT_S}
        left = dict(links)
        turned: list[tuple[PeerId, PeerId | None]] = []
        while self._waiting and len(turned) < TURN_LINKS:
            peer = self._drawn()
            claim, victim = self._waiting.pop(peer), None
            if len(left) >= self._places:
                victim = victim_for(claim, left, places=self._places, now=now)
                victim = victim or _least_useful(left, claim.kind, now, may_stay=True)
                victim = victim if victim in links else None  # not one that was drawn in this turn
                if victim is None:
                    self._waiting[peer] = claim  # nobody has to go: wait for the next turn
                    break
                del left[victim]
            left[peer] = replace(claim, since=now)
            turned.append((peer, victim))
        for _, victim in turned:
            if victim is not None:
                self._wait(victim, replace(links[victim], since=now), now)
        self._next_turn = now + TURN_S if self._waiting else math.inf
        return turned

    def forget(self, peer: PeerId) -> None:
        """A waiting peer has left, or is banned."""
        self._waiting.pop(peer, None)

    def _wait(self, peer: PeerId, claim: Claim, now: float) -> None:
        self._waiting[peer] = claim
        if math.isinf(self._next_turn):
            self._next_turn = now + TURN_S
        if len(self._waiting) > WAITING:
            crowded = fullest(other.subnet for other in self._waiting.values())
            (dropped,) = draw([p for p, other in self._waiting.items() if other.subnet in crowded], 1, self._rng)
            del self._waiting[dropped]

    def _drawn(self) -> PeerId:
        """A waiting peer at random: first a subnet, then one of its peers, so that keys buy no tickets elsewhere."""
        subnet = draw_one(sorted({claim.subnet for claim in self._waiting.values()}), self._rng)
        return draw_one([peer for peer, claim in self._waiting.items() if claim.subnet == subnet], self._rng)
