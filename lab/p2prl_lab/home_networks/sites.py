"""Kinds of homes: the routers between a machine and the internet, as data. Pure.

Addresses are such that libp2p and p2prl take them for public: 44.128.0.0/10 (amateur radio) and 3000::/16 (never
assigned). Nothing leaves the lab's namespaces. Every site has a /16 of its own, as homes of different providers do.
"""

from __future__ import annotations

import ipaddress
import random
from dataclasses import dataclass, field

from p2prl_lab.home_networks.line import Line
from p2prl_lab.home_networks.nat import Dependence, Firewall, Gateway, Nat, NatBehavior
from p2prl_lab.home_networks.port_requests import GATEWAY_PORT, PORT

PORT_PRESERVING = NatBehavior()
PORT_RESTRICTED = NatBehavior(preserves_ports=False)
SYMMETRIC = NatBehavior(mapping=Dependence.ADDRESS_AND_PORT, preserves_ports=False)

USUAL_KINDS = ("preserving", "restricted", "symmetric", "carrier", "ipv6", "upnp")
KINDS = (*USUAL_KINDS, "gateway")
"""Homes: a router that keeps ports, one that draws them, one that draws them for every remote, a router behind the
carrier's, IPv6 alone behind a stateful firewall, a router that opens ports when asked by NAT-PMP, and one that opens
them when asked by UPnP's SOAP."""

PUNCHABLE = frozenset({"preserving", "restricted", "carrier", "upnp", "gateway"})
"""Homes whose outside port is the same for every remote, so that two of them can meet."""

_LAN, _LAN_ROUTER = "192.168.1.10/24", "192.168.1.1"
_MOST_SITES = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class LineSpeed:
    """An access line."""

    up_mbit: float = 20.0
    down_mbit: float = 50.0
    delay_s: float = 0.010
    """One way, from the home to the core of the internet."""
    loss: float = 0.0


@dataclass(slots=True)
class Site:
    """A machine of the lab, its routers and its line."""

    name: str
    kind: str
    """`public`, or one of `KINDS`."""
    number: int
    addresses: tuple[str, ...]
    """Addresses of the machine's interface, with prefix lengths."""
    router: str | None
    """Next hop on the home's network; None for a machine without a router."""
    gateways: tuple[Gateway, ...]
    """Routers from the home to the internet."""
    up: Line
    down: Line
    outside: set[bytes] = field(default_factory=set)
    """Addresses at which the internet finds it."""
    port_requests_at: int = 0
    """The router's UDP port for `port_requests`; 0 for a router that opens no ports."""
    is_cut: bool = False


def make_site(name: str, kind: str, number: int, speed: LineSpeed, rng: random.Random) -> Site:
    """A site; `number` gives its addresses and is different for each."""
    if not 0 <= number < _MOST_SITES:
        raise ValueError(f"the lab has at most {_MOST_SITES} sites")
    public, public6 = public_address(number), public_address6(number)
    router: str | None = _LAN_ROUTER
    gateways: tuple[Gateway, ...]
    addresses: tuple[str, ...] = (_LAN,)
    outside = {public}
    if kind == "public":
        addresses = (f"{ipaddress.ip_address(public)}/32", f"{ipaddress.ip_address(public6)}/128")
        router, gateways, outside = None, (), {public, public6}
    elif kind == "ipv6":
        addresses, router = (f"{ipaddress.ip_address(public6)}/128",), None
        gateways, outside = (Firewall(),), {public6}
    elif kind == "carrier":
        inner = ipaddress.IPv4Address(f"100.64.{number}.2").packed
        gateways = (Nat(PORT_PRESERVING, inner, rng), Nat(PORT_RESTRICTED, public, rng))
    elif kind in KINDS:
        behavior = {"restricted": PORT_RESTRICTED, "symmetric": SYMMETRIC}.get(kind, PORT_PRESERVING)
        gateways = (Nat(behavior, public, rng),)
    else:
        raise ValueError(f"unknown kind {kind!r}; kinds are public, {', '.join(KINDS)}")
    up = Line(speed.up_mbit * 125_000.0, speed.delay_s, speed.loss)
    down = Line(speed.down_mbit * 125_000.0, speed.delay_s, speed.loss)
    port = {"upnp": PORT, "gateway": GATEWAY_PORT}.get(kind, 0)
    return Site(name, kind, number, addresses, router, gateways, up, down, outside, port)


def public_address(number: int, *, move: int = 0) -> bytes:
    """IPv4 address of a site; another one after each move."""
    return ipaddress.IPv4Address(f"44.{130 + number}.{7 + move}.1").packed


def public_address6(number: int, *, move: int = 0) -> bytes:
    """IPv6 address of a site; another one after each move."""
    return ipaddress.IPv6Address(f"3000:{100 + number}:{7 + move}::1").packed
