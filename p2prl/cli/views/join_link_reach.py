"""Addresses of a join link and the networks they can be dialed from. Pure."""

from __future__ import annotations

import ipaddress


def shareable(addresses: tuple[str, ...]) -> tuple[str, ...]:
    """`addresses` without loopback ones, which would mean the reader's own machine, unless there are no others."""
    return tuple(address for address in addresses if _reach(address) != "machine") or addresses


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
