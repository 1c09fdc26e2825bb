"""Who is introduced to whom: some 24 random neighbours each, more for large uplinks, most of them from nearby.

Random graphs of that degree stay in one piece when a third of their peers die, and need no tree to be kept up; below
16 neighbours the last peer came in 35 % later in simulation. Two thirds from the same region keep most chunks near.
"""

from __future__ import annotations

import ipaddress
import math
import statistics
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from p2prl.swarm.ports import Randomness
from p2prl.swarm.random_choice import draw

DEGREE = 24
"""Neighbours of a median peer."""

LEAST_DEGREE, MOST_DEGREE = 12, 64

SOURCE_DEGREE = 48
"""Peers the learner gives chunks to, drawn by their uplinks: what it sends must spread from there."""

_NEAR_SHARE = 2 / 3

_REGION_BITS = {4: 16, 6: 32}
"""Leading bits of an IP address that near peers share, by IP version: about what one provider holds in one country."""

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A peer that may be introduced. A region is any value that near peers share; None: not known."""

    upload_bytes_s: float
    region: object = None


def degree_of(upload_bytes_s: float, median_bytes_s: float) -> int:
    """Neighbours a peer should have: 24·√(uplink/median), between 12 and 64."""
    if upload_bytes_s <= 0 or median_bytes_s <= 0:
        return DEGREE
    return min(MOST_DEGREE, max(LEAST_DEGREE, round(DEGREE * math.sqrt(upload_bytes_s / median_bytes_s))))


def introductions_of(upload_bytes_s: float, median_bytes_s: float) -> int:
    """Peers to introduce a peer to: half its degree, since as many others are introduced to it."""
    return (degree_of(upload_bytes_s, median_bytes_s) + 1) // 2


def median_upload(swarm: Iterable[Candidate]) -> float:
    """Of those that say their uplink, bytes/s; 0 when none does."""
    known = [candidate.upload_bytes_s for candidate in swarm if candidate.upload_bytes_s > 0]
    return statistics.median(known) if known else 0.0


def region_of(addresses: Iterable[str]) -> str | None:
    """The network of a peer's first public address; None when it has none, or says nothing that can be read.

    An address that leads through a relay tells where the relay is, and does not count.
    """
    for address in addresses:
        parts = address.split("/")
        if "p2p-circuit" in parts or len(parts) < 3 or parts[1] not in ("ip4", "ip6"):
            continue
        try:
            place = ipaddress.ip_address(parts[2])
        except ValueError:
            continue
        if place.is_global:
            return str(ipaddress.ip_network((place, _REGION_BITS[place.version]), strict=False))
    return None


def hand_out(
    peer: P, swarm: Mapping[P, Candidate], rng: Randomness, *, count: int, kept: Collection[P] = ()
) -> list[P]:
    """`count` neighbours for one peer of a swarm, two thirds from its region; `kept` are the first of them.

    Peers without a region are near nobody: most of them cannot be dialled, least of all by each other.
    """
    region = swarm[peer].region
    chosen = [other for other in kept if other in swarm and other != peer][:count]
    taken = {peer, *chosen}
    if region is not None:
        already_near = sum(swarm[other].region == region for other in chosen)
        near = [other for other, c in swarm.items() if other not in taken and c.region == region]
        chosen += draw(near, min(round(count * _NEAR_SHARE) - already_near, count - len(chosen)), rng)
    taken.update(chosen)
    rest = [other for other in swarm if other not in taken]
    return chosen + draw(rest, count - len(chosen), rng)


def draw_by_upload(swarm: Mapping[P, Candidate], count: int, rng: Randomness) -> list[P]:
    """`count` different peers, each as likely as its uplink is large (Efraimidis and Spirakis, 2006)."""

    def key(peer: P) -> float:
        return math.log(max(rng.random(), 1e-300)) / max(swarm[peer].upload_bytes_s, 1.0)

    keys = {peer: key(peer) for peer in swarm}
    return sorted(swarm, key=lambda peer: -keys[peer])[:count]
