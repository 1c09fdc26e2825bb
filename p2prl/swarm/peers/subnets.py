"""Subnets of peers: the /24 of an IPv4 address, the /48 of an IPv6 one, the relay of a relayed peer. Pure.

Keys are free and addresses are not: who wants links, streams or records shares them with everybody of the same subnet
as soon as room is short.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import NewType

from p2prl.protocol.identity import PeerId

Subnet = NewType("Subnet", str)
"""Name of a subnet, as `192.0.2.0/24` or `relay/<peer id>`."""

UNKNOWN = Subnet("")
"""Subnet of peers whose address no transport has reported. They share one."""

_BITS = {4: 24, 6: 48}
"""Leading bits that one customer of a provider controls, by IP version."""


_REGION_BITS = {4: 16, 6: 32}
"""Leading bits that one provider holds: many subnets of it are as easy to rent as one."""


_RELAY = "relay/"


def is_relayed(subnet: Subnet) -> bool:
    """Whether it is that of peers behind a relay, whose connections pass circuits."""
    return subnet.startswith(_RELAY)


def subnet_of(address: str) -> Subnet:
    """The subnet of a multiaddr; `UNKNOWN` for one without an IP address."""
    return _network_of(address, _BITS)


def provider_of(address: str) -> Subnet:
    """The same with the width of a provider's network, /16 and /32."""
    return _network_of(address, _REGION_BITS)


def provider_of_subnet(subnet: Subnet) -> Subnet:
    """The provider's network around a subnet; a relay's and an unknown one stay as they are."""
    host, slash, _ = subnet.partition("/")
    return provider_of(f"/ip{6 if ':' in host else 4}/{host}") if slash and not is_relayed(subnet) else subnet


def _network_of(address: str, bits: dict[int, int]) -> Subnet:
    parts = address.split("/")[1:]
    if "p2p-circuit" in parts:
        before = parts[: parts.index("p2p-circuit")]
        # Everybody behind one relay counts together: the relay's address says nothing about theirs.
        return Subnet(f"{_RELAY}{before[-1]}") if len(before) > 1 and before[-2] == "p2p" else _of_ip(before, bits)
    return _of_ip(parts, bits)


def _of_ip(parts: list[str], bits: dict[int, int]) -> Subnet:
    if len(parts) < 2 or parts[0] not in ("ip4", "ip6"):
        return UNKNOWN
    return _network_around(parts[1], bits[4], bits[6])


@lru_cache(maxsize=4_096)
def _network_around(host: str, bits4: int, bits6: int) -> Subnet:
    """The network of an IP address, parsed once: records and connections name the same hosts again and again."""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return UNKNOWN
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return Subnet(str(ipaddress.ip_network((ip, bits4 if ip.version == 4 else bits6), strict=False)))


def fullest(subnets: Iterable[Subnet]) -> set[Subnet]:
    """The subnets that occur most often."""
    counts = Counter(subnets)
    most = max(counts.values(), default=0)
    return {subnet for subnet, count in counts.items() if count == most}


class PeerSubnets:
    """Subnet of each peer that a transport has reported, the last `capacity` of them."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._subnets: dict[PeerId, Subnet] = {}

    def __len__(self) -> int:
        return len(self._subnets)

    def note(self, peer: PeerId, address: str) -> None:
        """Note where a peer's newest connection comes from."""
        self._subnets.pop(peer, None)
        self._subnets[peer] = subnet_of(address)
        if len(self._subnets) > self._capacity:
            del self._subnets[next(iter(self._subnets))]

    def of(self, peer: PeerId) -> Subnet:
        """The peer's subnet, `UNKNOWN` if none was reported."""
        return self._subnets.get(peer, UNKNOWN)
