"""Resolution of DNS names that strangers named: a name that leads to a private address is not dialed.

The address that was checked is the one that is dialed: a second look-up could answer something else.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable

from p2prl.errors import TransportError
from p2prl.swarm.peers.dial_rules import IP, DialRules

_TIMEOUT_S = 5.0

_FAMILIES = {"dns": socket.AF_UNSPEC, "dns4": socket.AF_INET, "dns6": socket.AF_INET6}


async def resolved(address: str, rules: DialRules) -> str:
    """The multiaddr with its DNS name replaced by an IP address that may be dialed; others unchanged.

    Raises `TransportError` when the name leads nowhere, or to an address that a stranger may not name.
    """
    _, kind, host, *rest = (*address.split("/"), "", "")
    if kind not in _FAMILIES:
        return address
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            found = await asyncio.get_running_loop().getaddrinfo(
                host, None, family=_FAMILIES[kind], type=socket.SOCK_STREAM
            )
    except (OSError, UnicodeError) as error:
        raise TransportError(f"{host[:80]} does not resolve: {error}") from error
    ip = allowed_ips(host, (str(entry[4][0]) for entry in found), rules)[0]
    return "/".join(("", f"ip{ip.version}", str(ip), *(part for part in rest if part)))


def allowed_ips(host: str, found: Iterable[str], rules: DialRules) -> list[IP]:
    """The IP addresses that a look-up of a name has found. Raises `TransportError` unless a stranger may name them all:
    a name with one private address is not a public server's."""
    ips = [ipaddress.ip_address(each.partition("%")[0]) for each in found]
    if not ips or not all(rules.allows_ip(ip) for ip in ips):
        raise TransportError(f"{host[:80]} leads to an address that only its own network may dial")
    return ips
