"""Addresses to listen at: the default ones, those that this machine has, and the port, chosen once and kept."""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Sequence

ANY_IPV4 = "/ip4/0.0.0.0/tcp/0"

DEFAULT_LISTEN = (ANY_IPV4, "/ip6/::/tcp/0")
"""Any free TCP port on every interface, IPv4 and IPv6; a machine without IPv6 leaves that part out. TCP only: the
bundled daemon's QUIC (quic-go 0.40.0) has known vulnerabilities (CVE-2023-49295, CVE-2024-22189)."""

LOOPBACK_LISTEN = ("/ip4/127.0.0.1/tcp/0",)
"""For programs of this machine alone."""

_PORT_TRIES = 8


def usable_listen(listen: Sequence[str], *, ipv6: bool | None = None) -> tuple[str, ...]:
    """The addresses to listen on here: without the IPv6 wildcard where there is no IPv6 and others remain.

    `ipv6` says whether there is; None finds out.
    """
    without = tuple(address for address in listen if not address.startswith("/ip6/::/"))
    if not without or len(without) == len(listen) or (has_ipv6() if ipv6 is None else ipv6):
        return tuple(listen)
    return without


def with_one_port(listen: Sequence[str]) -> tuple[str, ...]:
    """The addresses with one free TCP port for all that leave the port open, if there are several.

    IPv4 and IPv6 would get different ports, and a port that is kept over restarts is one number.
    """
    if sum(address.endswith("/tcp/0") for address in listen) < 2:
        return tuple(listen)
    return with_port(listen, free_port())


def with_port(listen: Sequence[str], port: int) -> tuple[str, ...]:
    """The addresses with this port where they leave it open: others know where to find this machine."""
    return tuple(re.sub("/tcp/0$", f"/tcp/{port}", address) for address in listen)


def port_of(addresses: Sequence[str]) -> int:
    """The TCP port of the first of a node's own multiaddrs that has one; 0 for none."""
    parts = (address.split("/") for address in addresses)
    return next((int(each[4]) for each in parts if each[3:4] == ["tcp"]), 0)


def has_ipv6() -> bool:
    """Whether a program may listen on IPv6 here: kernels and containers may come without."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::", 0))
    except OSError:
        return False
    return True


def free_port() -> int:
    """A TCP port that is free on IPv4, and on IPv6 where there is one."""
    for _ in range(_PORT_TRIES):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind(("0.0.0.0", 0))  # noqa: S104 - asks the system for a number, and listens on nothing
            port: int = probe.getsockname()[1]
        try:
            with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(("::", port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                continue
        return port
    return port  # the daemon says what is wrong with it
