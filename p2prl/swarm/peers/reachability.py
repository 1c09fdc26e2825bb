"""Reachability of this peer, read from its own addresses and its links. Pure.

The daemon's AutoNAT asks other peers to dial it. Once they fail, the daemon names circuits instead of public addresses;
so a public address that is still named works, as far as anybody knows.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from p2prl.swarm.peers.meetings import is_direct_public


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
