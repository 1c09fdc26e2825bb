"""Kinds of homes: the routers between a machine and the internet, as data. Pure.

Addresses are such that libp2p and p2prl take them for public: 44.128.0.0/10 (amateur radio) and 3000::/16 (never
assigned). Nothing leaves the lab's namespaces. Every site has a /16 of its own, as homes of different providers do.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from p2prl_lab.home_networks.kernel_routers import DRAWS_PORTS, DRAWS_PORTS_PER_REMOTE, KEEPS_PORTS, KernelRouter
from p2prl_lab.home_networks.line import Line
from p2prl_lab.home_networks.port_requests import GATEWAY_PORT, PORT

USUAL_KINDS = ("preserving", "restricted", "symmetric", "carrier", "ipv6", "upnp")
KINDS = (*USUAL_KINDS, "gateway", "rejecting", "small", "web")
"""Homes: a router that keeps ports, one that draws them, one that draws them for every remote, a router behind the
carrier's, IPv6 alone behind a stateful firewall, a router that opens ports when asked by NAT-PMP, and one that opens
them when asked by UPnP's SOAP; one that resets strangers' connections where others drop them; a line that carries 1,280
bytes and says so to nobody; and a network that lets out TCP to port 443 alone. The lab without a swarm has two more
(`meeting.NEIGHBORS`)."""

PUNCHABLE = frozenset({"preserving", "restricted", "carrier", "upnp", "gateway", "rejecting", "small"})
"""Homes whose outside port is the same for every remote, so that two of them can meet."""

SMALL_MTU = 1_280

MTU = 1_500

_LAN, _LAN_ROUTER = "192.168.1.10/24", "192.168.1.1"
_LINK_LOCAL_ROUTER = "fe80::1"
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
    """A machine of the lab, its routers and its line: many fields, because a kind of home may differ in each."""

    name: str
    kind: str
    """`public`, or one of `KINDS`."""
    number: int
    addresses: tuple[str, ...]
    """Addresses of the machine's interface, with prefix lengths."""
    router: str | None
    """Next hop on the home's network; None for a machine without a router."""
    routers: tuple[KernelRouter, ...]
    """From the home to the internet."""
    up: Line
    down: Line
    outside: set[bytes] = field(default_factory=set)
    """Addresses at which the internet finds it."""
    port_requests_at: int = 0
    """The router's UDP port for `port_requests`; 0 for a router that opens no ports."""
    mtu: int = MTU
    """Longest packet that its line carries; longer ones are lost, and no ICMP says so."""
    is_cut: bool = False
    behind: str = ""
    """The site whose outermost router this one shares; empty for a line of its own."""


def make_site(name: str, kind: str, number: int, speed: LineSpeed, *, behind: str = "") -> Site:
    """A site; `number` gives its addresses and is different for each. `behind` is the site that a `neighbor` shares a
    carrier with."""
    if not 0 <= number < _MOST_SITES:
        raise ValueError(f"the lab has at most {_MOST_SITES} sites")
    public, public6 = public_address(number), public_address6(number)
    router: str | None = _LAN_ROUTER
    addresses: tuple[str, ...] = (_LAN,)
    outside = {public}
    if kind == "public":
        addresses = (f"{ipaddress.ip_address(public)}/32", f"{ipaddress.ip_address(public6)}/128")
        router, outside = None, {public, public6}
    elif kind == "ipv6":
        addresses, router, outside = (f"{ipaddress.ip_address(public6)}/128",), _LINK_LOCAL_ROUTER, {public6}
    up = Line(speed.up_mbit * 125_000.0, speed.delay_s, speed.loss)
    down = Line(speed.down_mbit * 125_000.0, speed.delay_s, speed.loss)
    return Site(
        name,
        kind,
        number,
        addresses,
        router,
        _routers_of(kind, number),
        up,
        down,
        outside,
        {"upnp": PORT, "gateway": GATEWAY_PORT}.get(kind, 0),
        SMALL_MTU if kind == "small" else MTU,
        behind=behind,
    )


def _routers_of(kind: str, number: int) -> tuple[KernelRouter, ...]:
    inside = f"{_LAN_ROUTER}/24"
    match kind:
        case "public":
            return ()
        case "ipv6":
            return (KernelRouter(inside=f"{_LINK_LOCAL_ROUTER}/64"),)
        case "carrier" | "hairpin" | "neighbor":
            home = KernelRouter(translation=KEEPS_PORTS, inside=inside, outside=f"100.64.{number}.2/30")
            if kind == "neighbor":
                return (home,)
            carrier = f"100.64.{number}.1/30"
            if kind == "carrier":
                return home, KernelRouter(translation=DRAWS_PORTS, inside=carrier)
            public = str(ipaddress.ip_address(public_address(number)))
            return home, KernelRouter(translation=KEEPS_PORTS, inside=carrier, turns_back=public)
        case "restricted":
            return (KernelRouter(translation=DRAWS_PORTS, inside=inside),)
        case "symmetric":
            return (KernelRouter(translation=DRAWS_PORTS_PER_REMOTE, inside=inside),)
        case "web":
            return (KernelRouter(translation=KEEPS_PORTS, inside=inside, lets_out="tcp dport 443"),)
    if kind not in KINDS:
        raise ValueError(f"unknown kind {kind!r}; kinds are public, {', '.join(KINDS)}")
    return (KernelRouter(translation=KEEPS_PORTS, inside=inside, rejects=kind == "rejecting"),)


def public_address(number: int, *, move: int = 0) -> bytes:
    """IPv4 address of a site; another one after each move."""
    return ipaddress.IPv4Address(f"44.{130 + number}.{7 + move}.1").packed


def public_address6(number: int, *, move: int = 0) -> bytes:
    """IPv6 address of a site; another one after each move."""
    return ipaddress.IPv6Address(f"3000:{100 + number}:{7 + move}::1").packed
