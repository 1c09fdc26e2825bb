"""The lab's internet: takes packets from machines and gives them to others, over lines. Pure.

Routers are the kernel's (`kernel_routers`); what leaves one with an address that is not the site's is lost, as a
provider drops it. It also counts who sent what to whom, which is the lab's own view of the swarm: a connection between
two homes is direct when their packets meet here without a third machine, whatever the peers believe.
"""

from __future__ import annotations

import heapq
import ipaddress
import random
from collections.abc import Iterable
from dataclasses import dataclass

from p2prl_lab.home_networks.packets import Packet, read_packet
from p2prl_lab.home_networks.sites import Site, public_address, public_address6

TALK_BYTES = 1_024
"""Payload each way that makes a conversation: the handshakes of libp2p, which fail half-way on a bad path, need less
than this in one direction."""


@dataclass(slots=True)
class Traffic:
    """What one site has sent to another since the last `forget_traffic`."""

    sent_bytes: int = 0
    """As packets leave the sender's line."""
    delivered_bytes: int = 0
    payload_bytes: int = 0
    """Delivered, without headers."""
    talked_at: float | None = None
    """When the payload delivered passed `TALK_BYTES`."""
    last_at: float = 0.0


@dataclass(slots=True)
class _Flight:
    """A packet on its way: in the core (`site` None), or on the receiver's line."""

    packet: Packet
    sender: str
    site: Site | None


class Internet:
    """All sites, and the packets between them."""

    def __init__(self, sites: Iterable[Site], rng: random.Random) -> None:
        self.sites = {site.name: site for site in sites}
        self._rng = rng
        self._owners = {address: site for site in self.sites.values() for address in site.outside}
        self._flights: list[tuple[float, int, _Flight]] = []
        self._count = 0
        self._moves: dict[str, int] = {}
        self.traffic: dict[tuple[str, str], Traffic] = {}
        self.untranslated: dict[str, int] = {}
        """Packets that left each site with an inside address: a router lets those out that it takes for invalid."""

    def receive(self, name: str, data: bytes, now: float) -> None:
        """A packet left a site."""
        site, packet = self.sites[name], read_packet(data)
        if packet is None or site.is_cut or len(data) > site.mtu:
            return
        if packet.source[0] not in site.outside:
            self.untranslated[name] = self.untranslated.get(name, 0) + 1
            return
        arrives = site.up.send(len(data), now, self._rng)
        if arrives is not None:
            self._push(arrives, _Flight(packet, name, None))

    def due(self, now: float) -> list[tuple[str, bytes]]:
        """Packets that have arrived by now: machine and bytes, in order."""
        arrived = []
        while self._flights and self._flights[0][0] <= now:
            at, _, flight = heapq.heappop(self._flights)
            if flight.site is None:
                self._route(flight, at)
            elif (data := self._deliver(flight.packet, flight.sender, flight.site, at)) is not None:
                arrived.append((flight.site.name, data))
        return arrived

    def next_deadline(self) -> float | None:
        """When `due` has something."""
        return self._flights[0][0] if self._flights else None

    def cut(self, name: str) -> None:
        """Take a site's line down, silently."""
        self.sites[name].is_cut = True

    def heal(self, name: str) -> None:
        """Put it up again."""
        self.sites[name].is_cut = False

    def move(self, name: str) -> tuple[str, ...]:
        """Give a site another public address. Returns it, or both of them, with prefix lengths: what stands outermost
        has to take them over (`namespaces.Machine.move`)."""
        site = self.sites[name]
        self._moves[name] = moves = self._moves.get(name, 0) + 1
        for address in site.outside:
            del self._owners[address]
        public = public_address(site.number, move=moves)
        public6 = public_address6(site.number, move=moves)
        site.outside = {public6 if len(old) == 16 else public for old in site.outside}
        for address in site.outside:
            self._owners[address] = site
        return tuple(f"{ipaddress.ip_address(a)}/{8 * len(a)}" for a in sorted(site.outside, key=len))

    def forget_traffic(self) -> None:
        """Count from nothing again."""
        self.traffic.clear()

    def _route(self, flight: _Flight, now: float) -> None:
        target = self._owners.get(flight.packet.target[0])
        size = len(flight.packet.data)
        if target is None:
            return
        self._traffic(flight.sender, target.name).sent_bytes += size
        arrives = target.down.send(size, now, self._rng)
        if arrives is not None:
            self._push(arrives, _Flight(flight.packet, flight.sender, target))

    def _deliver(self, packet: Packet, sender: str, site: Site, now: float) -> bytes | None:
        if site.is_cut or len(packet.data) > site.mtu:
            return None
        traffic = self._traffic(sender, site.name)
        traffic.delivered_bytes += len(packet.data)
        if packet.payload_bytes:
            traffic.payload_bytes += packet.payload_bytes
            traffic.last_at = now
            if traffic.talked_at is None and traffic.payload_bytes >= TALK_BYTES:
                traffic.talked_at = now
        return packet.data

    def _traffic(self, sender: str, receiver: str) -> Traffic:
        return self.traffic.setdefault((sender, receiver), Traffic())

    def _push(self, at: float, flight: _Flight) -> None:
        self._count += 1
        heapq.heappush(self._flights, (at, self._count, flight))
