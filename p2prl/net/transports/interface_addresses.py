"""Dialable addresses for a socket that listens on every interface."""

from __future__ import annotations

import socket

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
