"""Rules for addresses that a stranger has named: which ones this node dials, and how often. Pure.

Anybody can write addresses into the directory. Without rules they would make every node of a run connect to its own
services, its router, its neighbors' machines, or a victim's server. Addresses of the join link are not strangers'.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from p2prl.protocol.identity import PeerId
from p2prl.swarm.peers.subnets import Subnet, subnet_of
from p2prl.swarm.token_buckets import KeyedBuckets, Rate

IP = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

ADDRESSES_PER_DIAL = 4
"""Addresses of one record that a dial tries: home, router and relay, and one more."""

DIALS = Rate(per_s=4.0, burst=64.0)
"""Dials of strangers over all: a node fills its links at once, and no directory makes it scan."""

ASKED_DIALS = Rate(per_s=1.0, burst=32.0)
"""Dials that another peer asked for, beside those: of the learner, and of all others together. They must not use up a
node's own, or any linked peer could keep it from the learner and from links of its choice."""

DIALS_PER_SUBNET = Rate(per_s=0.2, burst=24.0)
"""Dials into one subnet: all links of a laboratory at once, and twelve a minute at a victim that records name."""

_SUBNETS = 1_024

_LEAST_PORT = 1_024

_PORTS_BELOW = frozenset({80, 443})
"""Ports below 1,024 on which peers may listen, to pass strict firewalls."""

_SERVICE_PORTS = frozenset(
    {1433, 1521, 2049, 2375, 2376, 2379, 2380, 3306, 3389, 5432, 5900, 5984, 6379, 6443, 8500, 9092, 9200, 9300}
    | {10250, 11211, 27017, 27018}
)
"""Ports of databases and of remote control, which answer to anybody who connects."""

_NEVER = tuple(
    map(
        ipaddress.ip_network,
        ("0.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4", "fe80::/10", "ff00::/8", "::/128"),
    )
)
"""Link-local (cloud metadata lives there), multicast, reserved."""

_OWN_BITS = {4: 24, 6: 64}
"""Leading bits of the network assumed around an own address, by IP version."""


@dataclass(frozen=True, slots=True)
class DialRules:
    """Addresses that may be dialed, by this node's own."""

    networks: tuple[Network, ...] = ()
    """Private networks this node is on."""
    is_local: bool = False
    """Whether the whole run is on this machine, so that loopback addresses are peers."""

    def allows_ip(self, ip: IP) -> bool:
        """Whether a stranger may name this IP address."""
        if isinstance(ip, ipaddress.IPv6Address):
            inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo or (None, None))[1] or _of_nat64(ip)
            if inner is not None:
                return self.allows_ip(inner)
        if ip.is_loopback:
            return self.is_local
        if any(ip in network for network in _NEVER if network.version == ip.version):
            return False
        return ip.is_global or any(ip in network for network in self.networks if network.version == ip.version)

    def allows(self, address: str, owner: PeerId) -> bool:
        """Whether to dial an address from a record of `owner`. A DNS name is checked again when it is resolved."""
        parts = address.split("/")
        if len(parts) < 5 or parts[0] or parts[3] != "tcp" or not _is_port(parts[4]):
            return False
        rest = parts[5:]
        if rest and rest[-2:] == ["p2p", owner]:
            rest = rest[:-2]
        if rest and not (len(rest) == 3 and rest[0] == "p2p" and rest[2] == "p2p-circuit"):
            return False
        if parts[1] in ("dns", "dns4", "dns6"):
            return is_public_name(parts[2])
        try:
            ip = ipaddress.ip_address(parts[2])
        except ValueError:
            return False
        is_plain = "%" not in parts[2]  # a zone is a name on the machine that wrote it
        return is_plain and parts[1] == f"ip{ip.version}" and self.allows_ip(ip)

    def chosen(self, addresses: Iterable[str], owner: PeerId) -> tuple[str, ...]:
        """The addresses of a record to dial, circuits last: they would win against a direct dial that takes longer."""
        allowed = [address for address in addresses if self.allows(address, owner)][:ADDRESSES_PER_DIAL]
        return tuple(sorted(allowed, key=lambda address: "p2p-circuit" in address.split("/")))


def rules_for(addresses: Iterable[str], networks: Iterable[Network] = (), *, is_local: bool = False) -> DialRules:
    """Rules of a node that listens at `addresses` and whose interfaces are on `networks`."""
    own = [ip for ip in map(_ip_of, addresses) if ip is not None]
    private = [ip for ip in own if not ip.is_global and not ip.is_loopback]
    around = [ipaddress.ip_network((ip, _OWN_BITS[ip.version]), strict=False) for ip in private]
    return DialRules((*networks, *around), is_local or (bool(own) and all(ip.is_loopback for ip in own)))


def is_public_name(host: str) -> bool:
    """Whether a DNS name may be public: it has a dot, and no ending of private networks."""
    labels = host.lower().rstrip(".").split(".")
    private = {"local", "localhost", "localdomain", "internal", "intranet", "lan", "home", "corp", "private", "arpa"}
    return len(host) <= 253 and len(labels) > 1 and all(labels) and labels[-1] not in private


def is_numeric_loopback(address: str) -> bool:
    """Whether a multiaddr is a loopback address."""
    ip = _ip_of(address)
    return ip is not None and ip.is_loopback


def _of_nat64(ip: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF) if ip in ipaddress.ip_network("64:ff9b::/96") else None


def _ip_of(address: str) -> IP | None:
    parts = address.split("/")
    if len(parts) < 3 or parts[1] not in ("ip4", "ip6") or "p2p-circuit" in parts:
        return None
    try:
        return ipaddress.ip_address(parts[2])
    except ValueError:
        return None


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and is_dialable_port(int(text))


def is_dialable_port(port: int) -> bool:
    """Whether a stranger may name this port: none of a service that answers to anybody who connects."""
    return port in _PORTS_BELOW or (_LEAST_PORT <= port < 1 << 16 and port not in _SERVICE_PORTS)


class DialBudget:
    """How many dials of strangers are left."""

    def __init__(self, rate: Rate = DIALS) -> None:
        """`rate` is that of all subnets together."""
        self._all = KeyedBuckets(rate, capacity=1)
        self._by_subnet = KeyedBuckets(DIALS_PER_SUBNET, capacity=_SUBNETS)

    def take(self, addresses: tuple[str, ...], now: float) -> tuple[str, ...]:
        """The addresses that may be dialed now; none when the budget is used up. Loopback has no subnet limit."""
        granted: list[str] = []
        tried: set[Subnet] = set()
        for address in addresses:
            subnet = subnet_of(address)
            free = subnet in tried or is_numeric_loopback(address)
            if free or self._by_subnet.take(subnet, now):
                tried.add(subnet)
                granted.append(address)
        return tuple(granted) if granted and self._all.take(None, now) else ()
