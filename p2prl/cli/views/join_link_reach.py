"""Addresses of a join link and the networks they can be dialed from. Pure."""

from __future__ import annotations

from p2prl.protocol import limits
from p2prl.protocol.join_link import as_wide, peers_of, reach_of

_MOST_OWN = 4
"""Addresses of the learner in a link: with three peers it still fits a chat message."""


def shareable(addresses: tuple[str, ...]) -> tuple[str, ...]:
    """`addresses` without loopback ones, which would mean the reader's own machine, unless there are no others."""
    return tuple(address for address in addresses if reach_of(address) != "machine") or addresses


def link_addresses(own: tuple[str, ...], peers: tuple[str, ...]) -> tuple[str, ...]:
    """The addresses of a link: the learner's shareable ones, of widest reach first, then those of listed peers.

    An address of the learner's through a relay names the relay too, so it takes one of those peers. Where the learner
    can be dialed from the internet, private addresses of others are left out.
    """
    reaches = ("internet", "network", "machine")
    listed = frozenset[str]().union(*map(peers_of, peers))
    named = [a for a in own if "/p2p-circuit" not in a or peers_of(a.partition("/p2p-circuit")[0]) <= listed]
    widest = sorted(dict.fromkeys(shareable(tuple(named))), key=lambda address: reaches.index(reach_of(address)))
    peers = as_wide(peers, widest)
    room = _MOST_OWN if peers else limits.MAX_ADDRESSES
    return (*widest[:room], *peers)[: limits.MAX_ADDRESSES]


def reach_warning(addresses: tuple[str, ...]) -> str:
    """Warning for the operator when a link does not work everywhere; empty otherwise."""
    reaches = {reach_of(address) for address in addresses}
    if not reaches or "internet" in reaches:
        return ""
    if "network" in reaches:
        return "This link works on this local network only: none of its addresses is public."
    return "This link works on this machine only: the learner listens only on a loopback address."
