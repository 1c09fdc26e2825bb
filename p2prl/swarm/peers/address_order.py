"""Order of this node's addresses for records, links and status: every way to reach it comes before a second of one way.

Records and links hold few addresses, and a dial tries fewer. A machine with containers, temporary IPv6 addresses and
several interfaces has a dozen, so the first of each way leads: IPv4 and IPv6 from outside, those of its own network, a
circuit. Pure.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable

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
