"""This machine's interfaces: dialable addresses for a socket that listens on all, public ones, private networks."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

import psutil

_WILDCARDS = {"/ip4/0.0.0.0/": ("/ip4/", socket.AF_INET), "/ip6/::/": ("/ip6/", socket.AF_INET6)}


def expand_wildcard(address: str) -> tuple[str, ...]:
    """Expand a wildcard address to one address per interface of this machine; return any other unchanged.

    IPv6 link-local addresses are left out: they are useless without the interface's name.
    """
    for wildcard, (prefix, family) in _WILDCARDS.items():
        if address.startswith(wildcard):
            found = (
                entry.address
                for entries in psutil.net_if_addrs().values()
                for entry in entries
                if entry.family == family and "%" not in entry.address
            )
            return tuple(f"{prefix}{host}/{address.removeprefix(wildcard)}" for host in found)
    return (address,)


def routable_families() -> frozenset[int]:
    """IP versions of which an interface has an address that leads out of this machine."""
    found = set()
    for entries in psutil.net_if_addrs().values():
        for entry in entries:
            try:
                ip = ipaddress.ip_address(entry.address)
            except ValueError:
                continue  # a hardware address, or one with an interface's name: link-local
            if not (ip.is_loopback or ip.is_link_local):
                found.add(ip.version)
    return frozenset(found)


_BROADEST_BITS = 16
"""Leading bits of the broadest private network that counts as this machine's: a campus, not all of 10/8."""


def private_networks() -> tuple[ipaddress.IPv4Network, ...]:
    """The private IPv4 networks that this machine's interfaces are on. Of IPv6 the own /64 is assumed anyway."""
    found = []
    for entries in psutil.net_if_addrs().values():
        for entry in entries:
            if entry.family != socket.AF_INET or not entry.netmask:
                continue
            network = ipaddress.IPv4Network((entry.address, entry.netmask), strict=False)
            if not (network.is_global or network.is_loopback or network.is_link_local):
                found.append(network if network.prefixlen >= _BROADEST_BITS else _narrowed(entry.address))
    return tuple(found)


def has_public_address() -> bool:
    """Whether an interface of this machine has a public IPv4 address: there is no router that translates it."""
    return any_public(own_hosts())


def own_hosts() -> frozenset[str]:
    """Addresses of this machine's interfaces: of IPv4, IPv6 and hardware."""
    return frozenset(entry.address for entries in psutil.net_if_addrs().values() for entry in entries)


def any_public(hosts: Iterable[str]) -> bool:
    """Whether one of these interface addresses is public IPv4.

    IPv6 says nothing: behind a home router each machine has a public address, and the router refuses connections.
    """
    for host in hosts:
        try:
            if ipaddress.IPv4Address(host).is_global:
                return True
        except ValueError:
            continue  # IPv6, or a hardware address
    return False


def _narrowed(address: str) -> ipaddress.IPv4Network:
    return ipaddress.IPv4Network((address, _BROADEST_BITS), strict=False)
