"""From where the addresses of a join link can be dialled. Pure."""

from __future__ import annotations

import ipaddress


def worth_sharing(addresses: tuple[str, ...]) -> tuple[str, ...]:
    """`addresses` without those that mean another machine's self, unless there is no other."""
    return tuple(address for address in addresses if _reach(address) != "machine") or addresses


def reach_warning(addresses: tuple[str, ...]) -> str:
    """A sentence for an operator whose link does not work everywhere; nothing when it may."""
    reaches = {_reach(address) for address in addresses}
    if not reaches or "world" in reaches:
        return ""
    if "network" in reaches:
        return "This link works on this local network only: none of its addresses is public."
    return "This link works on this machine only: the learner listens on nothing but its loopback address."


def _reach(multiaddr: str) -> str:
    """`machine`, `network` or `world`. A name or a relay is taken for the world: nothing here can tell."""
    parts = multiaddr.split("/")
    if "p2p-circuit" in parts or parts[1:2] not in (["ip4"], ["ip6"]):
        return "world"
    address = ipaddress.ip_address(parts[2])
    if address.is_loopback:
        return "machine"
    return "world" if address.is_global else "network"
