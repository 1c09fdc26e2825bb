"""Address translation of a home router or a carrier, and a stateful firewall, with behavior as data. Pure.

The terms are those of RFC 4787 (UDP) and RFC 5382 (TCP): *mapping* says when two flows of one inside endpoint share an
outside port, *filtering* says whose packets an outside port lets in. Packets that are refused are dropped silently.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from p2prl_lab.home_networks.packets import FIN, RST, SYN, TCP, Endpoint, Packet

_FIRST_PORT, _LAST_PORT = 1_024, 65_535


class Dependence(Enum):
    """What a mapping or a filter depends on, beside the inside endpoint."""

    ENDPOINT = "endpoint-independent"
    ADDRESS = "address-dependent"
    ADDRESS_AND_PORT = "address-and-port-dependent"


@dataclass(frozen=True, kw_only=True, slots=True)
class NatBehavior:
    """How a router translates."""

    mapping: Dependence = Dependence.ENDPOINT
    filtering: Dependence = Dependence.ADDRESS_AND_PORT
    preserves_ports: bool = True
    """Whether the outside port is the inside one while that is free; otherwise it is drawn."""
    udp_idle_s: float = 120.0
    """An unused mapping of UDP ends; two minutes is the least that RFC 4787 permits."""
    tcp_open_s: float = 240.0
    """The same for a TCP connection that is opening or closing (RFC 5382)."""
    tcp_idle_s: float = 7_440.0
    """The same for an established one."""


class Gateway(Protocol):
    """What stands between a home and the internet."""

    def outbound(self, packet: Packet, now: float) -> bool:
        """Rewrite a packet of the inside; False drops it."""

    def inbound(self, packet: Packet, now: float) -> bool:
        """Rewrite a packet of the outside; False drops it."""


@dataclass(slots=True)
class _Mapping:
    inside: Endpoint
    protocol: int
    remotes: dict[Endpoint, float] = field(default_factory=dict)
    """When the inside last sent to each."""
    used_at: float = 0.0
    is_established: bool = False
    is_fixed: bool = False
    """Asked for by the inside (NAT-PMP, UPnP): everybody may send to it."""


class Nat:
    """A router with one outside address."""

    def __init__(self, behavior: NatBehavior, outside: bytes, rng: random.Random) -> None:
        self.behavior = behavior
        self.outside = outside
        self._rng = rng
        self._by_flow: dict[tuple[object, ...], int] = {}
        self._by_port: dict[tuple[int, int], _Mapping] = {}
        self._before: dict[tuple[object, ...], int] = {}
        """Port of each flow from before the inside opened one: connections that were made over it keep it."""

    def move(self, outside: bytes) -> None:
        """Take another outside address, as after a reconnect; every mapping ends."""
        self.outside = outside
        self._by_flow.clear()
        self._by_port.clear()
        self._before.clear()

    def open_port(self, protocol: int, inside: Endpoint, wanted: int, now: float) -> int:
        """Let everybody reach an inside endpoint; returns the outside port, `wanted` if it is free."""
        for (used, port), mapping in self._by_port.items():
            if used == protocol and mapping.is_fixed and mapping.inside == inside:
                return port
        port = self._free_port(protocol, wanted, now, preserve=True)
        self._by_port[protocol, port] = _Mapping(inside, protocol, used_at=now, is_fixed=True)
        if (protocol, inside) in self._by_flow:
            self._before[protocol, inside] = self._by_flow[protocol, inside]
        self._by_flow[protocol, inside] = port
        return port

    def outbound(self, packet: Packet, now: float) -> bool:
        """Translate a packet that leaves. Packets to the own outside address (hairpins) are dropped, as most do."""
        if packet.target[0] == self.outside:
            return False
        key = self._flow(packet)
        port = self._by_flow.get((packet.protocol, packet.source), self._by_flow.get(key))
        before = self._before.get((packet.protocol, packet.source))
        if before is not None and packet.target in self._by_port[packet.protocol, before].remotes:
            port = before
        mapping = None if port is None else self._by_port.get((packet.protocol, port))
        if port is None or mapping is None or self._has_expired(mapping, now):
            port = self._free_port(packet.protocol, packet.source[1], now, preserve=self.behavior.preserves_ports)
            mapping = self._by_port[packet.protocol, port] = _Mapping(packet.source, packet.protocol)
            self._by_flow[key] = port
        mapping.remotes[packet.target] = mapping.used_at = now
        self._note_state(mapping, packet)
        packet.set_source((self.outside, port))
        return True

    def inbound(self, packet: Packet, now: float) -> bool:
        """Translate a packet that arrives, when the filter lets it in."""
        mapping = self._by_port.get((packet.protocol, packet.target[1]))
        if mapping is None or packet.target[0] != self.outside or self._has_expired(mapping, now):
            return False
        if not mapping.is_fixed and not passes(self.behavior.filtering, packet.source, mapping.remotes):
            return False
        mapping.used_at = now
        self._note_state(mapping, packet)
        packet.set_target(mapping.inside)
        return True

    def _flow(self, packet: Packet) -> tuple[object, ...]:
        if self.behavior.mapping is Dependence.ENDPOINT:
            return packet.protocol, packet.source
        if self.behavior.mapping is Dependence.ADDRESS:
            return packet.protocol, packet.source, packet.target[0]
        return packet.protocol, packet.source, packet.target

    def _free_port(self, protocol: int, wanted: int, now: float, *, preserve: bool) -> int:
        port = wanted if preserve else self._rng.randint(_FIRST_PORT, _LAST_PORT)
        while (taken := self._by_port.get((protocol, port))) is not None and not self._has_expired(taken, now):
            port = self._rng.randint(_FIRST_PORT, _LAST_PORT)
        return port

    def _has_expired(self, mapping: _Mapping, now: float) -> bool:
        if mapping.is_fixed:
            return False
        if mapping.protocol != TCP:
            patience_s = self.behavior.udp_idle_s
        else:
            patience_s = self.behavior.tcp_idle_s if mapping.is_established else self.behavior.tcp_open_s
        return now - mapping.used_at > patience_s

    @staticmethod
    def _note_state(mapping: _Mapping, packet: Packet) -> None:
        # One mapping may carry several connections (a reused port); the last one to say something counts.
        if packet.protocol == TCP:
            mapping.is_established = not packet.flags & (SYN | FIN | RST)


class Firewall:
    """A router that translates nothing and lets in only what the inside has asked for, as with IPv6."""

    def __init__(self, filtering: Dependence = Dependence.ADDRESS_AND_PORT, *, idle_s: float = 3_600.0) -> None:
        self._filtering = filtering
        self._idle_s = idle_s
        self._remotes: dict[tuple[int, Endpoint], dict[Endpoint, float]] = {}

    def outbound(self, packet: Packet, now: float) -> bool:
        """Note whom the inside talks to."""
        self._remotes.setdefault((packet.protocol, packet.source), {})[packet.target] = now
        return True

    def inbound(self, packet: Packet, now: float) -> bool:
        """Let answers in."""
        known = self._remotes.get((packet.protocol, packet.target), {})
        recent = {remote: at for remote, at in known.items() if now - at <= self._idle_s}
        if not passes(self._filtering, packet.source, recent):
            return False
        if packet.source in known:
            known[packet.source] = now
        return True


def passes(filtering: Dependence, source: Endpoint, remotes: dict[Endpoint, float]) -> bool:
    """Whether a filter lets a sender in, given the remotes that the inside has sent to."""
    if filtering is Dependence.ENDPOINT:
        return bool(remotes)
    if filtering is Dependence.ADDRESS:
        return any(address == source[0] for address, _ in remotes)
    return source in remotes
