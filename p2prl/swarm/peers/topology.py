"""Neighbor graph of the swarm: about 24 random neighbors per peer, more for large uplinks, most of them nearby.

Random graphs of that degree stay connected when a third of their peers die, and need no tree to be maintained; below
16 neighbors the last peer finished 35 % later in simulation. Two thirds come from the same region, so most chunks
travel a short way.

Every peer is linked with the learner if it can be, so the learner sees most of the swarm, draws this graph and
introduces the neighbors to each other. It repeats the same introductions, and draws new ones only when too many of
the introduced peers have left or the swarm has outgrown a short list: a link that carries a transfer is not replaced
for a slightly better graph. Without introductions peers link at random (`p2prl.swarm.peers.discovery`), which only
costs time. Pure.
"""

from __future__ import annotations

import ipaddress
import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from p2prl.protocol.identity import PeerId
from p2prl.protocol.kinds import Role
from p2prl.swarm.ports import Randomness
from p2prl.swarm.random_choice import draw

DEGREE = 24
"""Neighbors of a peer with the median uplink."""

LEAST_DEGREE, MOST_DEGREE = 12, 64

_NEAR_SHARE = 2 / 3

_REGION_BITS = {4: 16, 6: 32}
"""Leading bits of an IP address that near peers share, by IP version: about what one provider holds in one country."""

_DRAWN_EACH, _DRAWN_LEAST = 16, 256
"""Peers drawn for each neighbor, among which subnets are compared: of a thousand linked peers not all."""

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A peer that may be introduced. A region is any value that near peers share; None when unknown."""

    upload_bytes_s: float
    region: object = None
    subnet: object = None
    """Any value that the peers of one subnet share; None when unknown. Many keys of one subnet count like one peer."""
    is_known: bool = False
    """Whether it is no newcomer."""


def target_degree(upload_bytes_s: float, median_bytes_s: float) -> int:
    """Neighbors a peer should have: 24·√(uplink/median), between 12 and 64."""
    if upload_bytes_s <= 0 or median_bytes_s <= 0:
        return DEGREE
    return min(MOST_DEGREE, max(LEAST_DEGREE, round(DEGREE * math.sqrt(upload_bytes_s / median_bytes_s))))


def introduction_count(upload_bytes_s: float, median_bytes_s: float) -> int:
    """Peers to introduce to a peer: half its degree, since about as many others are introduced to it."""
    return (target_degree(upload_bytes_s, median_bytes_s) + 1) // 2


def median_upload(swarm: Iterable[Candidate]) -> float:
    """Median uplink of the peers that state one, bytes/s; 0 when none does."""
    known = [candidate.upload_bytes_s for candidate in swarm if candidate.upload_bytes_s > 0]
    return statistics.median(known) if known else 0.0


def region_of(addresses: Iterable[str]) -> str | None:
    """The network of a peer's first public IP address; None when it has none.

    An address through a circuit relay tells where the relay is, and does not count.
    """
    for address in addresses:
        parts = address.split("/")
        if "p2p-circuit" in parts or len(parts) < 3 or parts[1] not in ("ip4", "ip6"):
            continue
        try:
            ip = ipaddress.ip_address(parts[2])
        except ValueError:
            continue
        if ip.is_global:
            return str(ipaddress.ip_network((ip, _REGION_BITS[ip.version]), strict=False))
    return None


def choose_neighbors(
    peer: P, swarm: Mapping[P, Candidate], rng: Randomness, *, count: int, kept: Collection[P] = ()
) -> list[P]:
    """Draw `count` neighbors for one peer of a swarm, two thirds from its region; `kept` are the first of them.

    Peers without a region are near nobody: most of them cannot be dialed, least of all by each other.
    """
    region = swarm[peer].region
    chosen = [other for other in kept if other in swarm and other != peer][:count]
    taken = {peer, *chosen}
    if region is not None:
        already_near = sum(swarm[other].region == region for other in chosen)
        near = [other for other, c in swarm.items() if other not in taken and c.region == region]
        chosen += _spread(near, swarm, chosen, min(round(count * _NEAR_SHARE) - already_near, count - len(chosen)), rng)
    taken.update(chosen)
    rest = [other for other in swarm if other not in taken]
    return chosen + _spread(rest, swarm, chosen, count - len(chosen), rng)


def _spread(pool: list[P], swarm: Mapping[P, Candidate], chosen: list[P], count: int, rng: Randomness) -> list[P]:
    """Draw from a pool, subnet by subnet: one attacker's thousand keys must not be most of anybody's neighbors."""
    if count <= 0 or all(swarm[peer].subnet is None for peer in pool):
        return draw(pool, count, rng)
    taken = Counter(swarm[peer].subnet for peer in chosen)
    lots: dict[object, float] = {}
    placed: list[tuple[int, float, P]] = []
    for peer in draw(pool, max(_DRAWN_EACH * count, _DRAWN_LEAST), rng):
        subnet = swarm[peer].subnet
        lot = rng.random() if subnet is None else lots.setdefault(subnet, rng.random())
        placed.append((0 if subnet is None else taken[subnet], lot, peer))
        taken[subnet] += 1
    placed.sort(key=lambda place: place[:2])
    return [peer for _, _, peer in placed[:count]]


RELAYING = frozenset({Role.VOLUNTEER, Role.VALIDATOR, Role.SEEDER})
"""Roles that download weights and pass them on."""

_PERIOD_S = 5.0
"""Period of the check. Until then a newcomer opens its first links at random."""

_ENOUGH = 0.75
"""Share of a peer's introductions that must still be linked; below it others are added."""

_REPEAT_S = 300.0
"""How often an introduction is repeated: the peer may have restarted behind a link that never broke."""

_MAX_PER_PERIOD = 64
"""Peers introduced per period: a thousand that arrive together are handled in a minute and a half, not at once."""


class Introductions:
    """Introductions made so far, and those due."""

    def __init__(self, rng: Randomness, now: float) -> None:
        self._rng = rng
        self._introduced: dict[PeerId, tuple[PeerId, ...]] = {}
        self._sent_at: dict[PeerId, float] = {}
        self._next = now + _PERIOD_S

    def next_deadline(self) -> float:
        """When `take_due` next checks the swarm."""
        return self._next

    def take_due(self, swarm: Mapping[PeerId, Candidate], now: float) -> list[tuple[PeerId, tuple[PeerId, ...]]]:
        """(peer, its neighbors) for the peers of `swarm` that need an introduction; empty between periods."""
        if now < self._next:
            return []
        self._next = now + _PERIOD_S
        self._introduced = {peer: others for peer, others in self._introduced.items() if peer in swarm}
        self._sent_at = {peer: at for peer, at in self._sent_at.items() if peer in swarm}
        median_bytes_s = median_upload(swarm.values())
        due: list[tuple[PeerId, tuple[PeerId, ...]]] = []
        for peer in _in_turn(swarm):
            candidate = swarm[peer]
            count = min(introduction_count(candidate.upload_bytes_s, median_bytes_s), len(swarm) - 1)
            present = [other for other in self._introduced.get(peer, ()) if other in swarm]
            if len(present) >= _ENOUGH * count and now < self._sent_at.get(peer, now) + _REPEAT_S:
                continue
            self._sent_at[peer] = now
            self._introduced[peer] = tuple(choose_neighbors(peer, swarm, self._rng, count=count, kept=present))
            due.append((peer, self._introduced[peer]))
            if len(due) == _MAX_PER_PERIOD:
                break
        return due


def _in_turn(swarm: Mapping[PeerId, Candidate]) -> list[PeerId]:
    """Peers of standing first, then one newcomer of each subnet, then the second ones: a flood of keys waits."""
    earlier: Counter[object] = Counter()
    place = {}
    for peer, candidate in swarm.items():
        place[peer] = (not candidate.is_known, earlier[candidate.subnet])
        earlier[candidate.subnet] += candidate.subnet is not None
    return sorted(swarm, key=lambda peer: place[peer])
