"""Addresses of a join link and the networks they can be dialed from. Pure."""

from __future__ import annotations

import ipaddress

from p2prl.protocol import limits
from p2prl.protocol.join_link import peers_of

_MOST_OWN = 4
"""Addresses of the learner in a link: with three peers it still fits a chat message."""


def shareable(addresses: tuple[str, ...]) -> tuple[str, ...]:
    """`addresses` without loopback ones, which would mean the reader's own machine, unless there are no others."""
    return tuple(address for address in addresses if _reach(address) != "machine") or addresses


def link_addresses(own: tuple[str, ...], peers: tuple[str, ...]) -> tuple[str, ...]:
    """The addresses of a link: the learner's shareable ones, of widest reach first, then those of listed peers.

    An address of the learner's through a relay names the relay too, so it takes one of those peers.
    """
    reaches = ("internet", "network", "machine")
    listed = frozenset[str]().union(*map(peers_of, peers))
    named = [a for a in own if "/p2p-circuit" not in a or peers_of(a.partition("/p2p-circuit")[0]) <= listed]
    widest = sorted(dict.fromkeys(shareable(tuple(named))), key=lambda address: reaches.index(_reach(address)))
    room = _MOST_OWN if peers else limits.MAX_ADDRESSES
    return (*widest[:room], *peers)[: limits.MAX_ADDRESSES]


def reach_warning(addresses: tuple[str, ...]) -> str:
    """Warning for the operator when a link does not work everywhere; empty otherwise."""
    reaches = {_reach(address) for address in addresses}
    if not reaches or "internet" in reaches:
        return ""
    if "network" in reaches:
        return "This link works on this local network only: none of its addresses is public."
    return "This link works on this machine only: the learner listens only on a loopback address."


def _reach(multiaddr: str) -> str:
    """`machine`, `network` or `internet`. A host name or a relay counts as internet, since its reach is unknown."""
    parts = multiaddr.split("/")
    if "p2p-circuit" in parts or parts[1:2] not in (["ip4"], ["ip6"]):
        return "internet"
    address = ipaddress.ip_address(parts[2])
    if address.is_loopback:
        return "machine"
    return "internet" if address.is_global else "network"
