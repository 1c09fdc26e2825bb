"""Reachability of this peer and of its links: other relays when they are needed, and a way out of circuits. Pure.

The daemon's AutoNAT asks other peers to dial it. Once they fail, the daemon names circuits instead of public addresses;
so a public address that is still named works, as far as anybody knows.

Relays: a home that nobody can dial is dialed through a relay. When every relay it was started with has gone, it keeps
the links that it opened, and no newcomer reaches it any more.

Circuits: after a restart the first link may be a circuit: a learner dials the homes that it remembers. libp2p leaves
such a circuit by itself only where it knows its own public address, and behind a router that gives every remote another
port it never does. The circuit costs its relay every byte twice, and weights pass it last.

Records and links hold few addresses, and a dial tries fewer. A machine with containers, temporary IPv6 addresses and
several interfaces has a dozen, so the first of each way leads: IPv4 and IPv6 from outside, those of its own network, a
circuit. Pure.
"""

from __future__ import annotations

import ipaddress
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from enum import StrEnum

from p2prl.protocol.identity import PeerId
from p2prl.swarm.peers.meetings import is_direct_public
from p2prl.swarm.peers.peer_memory import LASTING_ROLES, LinkedRecord

_WAYS = ("public4", "public6", "private4", "private6", "name", "circuit", "machine")
"""Ways to reach a peer. A public address works from everywhere; the machine's own only for peers on it."""

_FAR = len(_WAYS) - 1


def foremost(addresses: Iterable[str], most: int) -> tuple[str, ...]:
    """At most `most` of the addresses: the first of each way, then the second ones; the machine's own last."""
    earlier: Counter[int] = Counter()
    placed: list[tuple[bool, int, int, str]] = []
    for address in dict.fromkeys(addresses):
        way = _WAYS.index(_way_of(address))
        placed.append((way == _FAR, earlier[way], way, address))
        earlier[way] += 1
    return tuple(place[-1] for place in sorted(placed)[:most])


def _way_of(address: str) -> str:
    parts = address.split("/")
    if "p2p-circuit" in parts:
        return "circuit"
    if len(parts) < 3 or parts[1] not in ("ip4", "ip6"):
        return "name"
    try:
        ip = ipaddress.ip_address(parts[2])
    except ValueError:
        return "name"
    if ip.is_loopback:
        return "machine"
    return f"{'public' if ip.is_global else 'private'}{ip.version}"


_FIRST_S = 10.0
"""libp2p, or a meeting, has replaced the circuit by then, if it can."""

_AGAIN_S, _LONG_S = 30.0, 600.0
_TRIES = 4
"""Attempts after `_AGAIN_S`, two for each IP version; later ones come after `_LONG_S`."""

_AT_ONCE = 4
"""Dials at one moment: a dead address takes three seconds."""


@dataclass(slots=True)
class _Detour:
    next_at: float
    attempts: int = 0


class Detours:
    """Attempts so far, for the peers that are linked through circuits."""

    def __init__(self) -> None:
        self._detours: dict[PeerId, _Detour] = {}

    def due(self, relayed: Mapping[PeerId, Sequence[str]], now: float) -> list[tuple[PeerId, str]]:
        """Peers to dial now, and where. `relayed` are those linked through circuits, with their public addresses."""
        self._detours = {peer: self._detours.get(peer) or _Detour(now + _FIRST_S) for peer in relayed}
        ready = [peer for peer, detour in self._detours.items() if detour.next_at <= now and relayed[peer]]
        chosen = []
        for peer in sorted(ready, key=lambda peer: self._detours[peer].next_at)[:_AT_ONCE]:
            detour, addresses = self._detours[peer], relayed[peer]
            chosen.append((peer, addresses[detour.attempts % len(addresses)]))
            detour.attempts += 1
            detour.next_at = now + (_AGAIN_S if detour.attempts < _TRIES else _LONG_S)
        return chosen


class Reach(StrEnum):
    """Ways in which others reach a peer, the best first."""

    DIRECT = "direct"
    """At an address of its own."""
    MAPPED = "mapped"
    """Through a port that its router has opened for it."""
    PUNCHED = "punched"
    """By peers that met it through a third one; strangers cannot dial it."""
    RELAYED = "relayed"
    """Through another peer's circuit alone."""
    OUTGOING = "outgoing"
    """Not at all: it has only the links that it opened."""
    LOCAL = "local"
    """On its own network; it is linked with nobody outside."""
    CUT_OFF = "cut off"
    """It has no link."""


@dataclass(frozen=True, slots=True)
class LinkCounts:
    """A peer's links, by how they came about."""

    linked: int = 0
    """All of them, after the first hello."""
    outside: int = 0
    """With peers seen at public addresses, or through circuits."""
    met: int = 0
    """Direct ones with peers that strangers cannot dial either."""


def reach_of(
    addresses: Collection[str], links: LinkCounts, *, own_hosts: Collection[str], is_public: bool = False
) -> Reach:
    """How others reach a peer with these addresses and links.

    `own_hosts` are the IP addresses of its interfaces; `is_public` says that its owner or its role knows it is public.
    """
    if not links.linked:
        return Reach.CUT_OFF
    public = [address for address in addresses if is_direct_public(address)]
    if is_public or any(address.split("/")[2] in own_hosts for address in public):
        return Reach.DIRECT
    if public:
        return Reach.MAPPED
    if links.met:
        return Reach.PUNCHED
    if any("p2p-circuit" in address.split("/") for address in addresses):
        return Reach.RELAYED
    return Reach.OUTGOING if links.outside else Reach.LOCAL


ALONE_S = 60.0
"""Without a link for this long, a node that had some is cut off. A restart of everybody else takes less."""


class Loneliness:
    """Whether a node that had links has none any more."""

    def __init__(self) -> None:
        self._since = math.inf
        """Since when there is none; infinity before the first link."""
        self._is_told = False

    def begins(self, links: Sized, now: float) -> bool:
        """True once for each time that the last of the links has been gone for `ALONE_S`."""
        if links:
            self._since, self._is_told = now, False
        is_due = now - self._since >= ALONE_S and not self._is_told
        self._is_told |= is_due
        return is_due


PATIENCE_S = 180.0
"""How long no relay may answer before others are taken: a machine restarts in less."""

LEAST_RUN_S = 900.0
"""How long a daemon runs at least: a start breaks all links for seconds."""

_DIALABLE = frozenset({Reach.DIRECT, Reach.MAPPED})
_ALONE = frozenset({Reach.LOCAL, Reach.CUT_OFF})


class RelayWatch:
    """The relay candidates of one daemon, and since when none of them has been of use."""

    def __init__(self, relays: Collection[PeerId], now: float) -> None:
        self._relays = frozenset(relays)
        self._began_at = now
        self._gone_since = math.inf

    def is_due(
        self,
        now: float,
        *,
        reach: Reach,
        addresses: Iterable[str],
        linked: Collection[LinkedRecord],
        is_busy: bool,
    ) -> bool:
        """Whether to start again now. `addresses` are this node's own; `is_busy` says that a download is under way.

        Only if there is something to gain: a linked peer in a lasting role, at a public address that its connection
        comes from, which is no candidate yet.
        """
        has_slot = any("p2p-circuit" in address.split("/") for address in addresses)
        is_served = has_slot or any(record.peer in self._relays for record in linked)
        if reach in _DIALABLE or reach in _ALONE or is_served:
            self._gone_since = math.inf
            return False
        self._gone_since = min(self._gone_since, now)
        is_long = now - self._gone_since >= PATIENCE_S and now - self._began_at >= LEAST_RUN_S
        return is_long and not is_busy and any(map(_may_relay, linked))


def _may_relay(record: LinkedRecord) -> bool:
    return record.role in LASTING_ROLES and any(
        is_direct_public(address) and record.is_proven(address) for address in record.addresses
    )
