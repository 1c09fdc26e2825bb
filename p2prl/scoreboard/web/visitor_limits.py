"""Limits on a board's visitors: how long a request may take to arrive, and how many connections are held.

uvicorn closes a connection that is idle between two requests, and waits without end for one that is half sent. This is
its HTTP/1.1 protocol with a deadline for headers, for a body and for reading an answer, and with bounds on connections.
Visitors are counted by subnet, as peers are: connections are free, addresses are not.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from p2prl.swarm.peers.subnets import Subnet, fullest, subnet_of

LOOPBACK = Subnet("loopback")
"""Of everybody on this machine: a proxy here brings visitors of all subnets, so only the total bounds it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VisitorLimits:
    """Time and connections that the visitors of a board may use."""

    header_s: float = 10.0
    """From the connection, or the answer before, to the end of a request's headers. They fit one packet: a modem needs
    a second."""
    body_s: float = 10.0
    """From there to the end of its body. Nothing here has one, so it is read only to be thrown away."""
    read_s: float = 60.0
    """For which an answer may wait to be read on. A page fits the buffers of a line; only the ledger is longer."""
    connections: int = 512
    """Held at once: twice the event streams (`events.MAX_STREAMS`), and half of the 1,024 descriptors that a process
    usually has; the board's own network takes part of the rest."""
    per_subnet: int = 128
    """Of these from one /24 or /48: a quarter. A browser holds up to seven, so some twenty people behind one router
    are served whatever others do."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """A connection."""

    subnet: Subnet
    waiting_since: float | None
    """Since when a whole request is awaited; None while one is answered."""


def displaced(visitors: Sequence[Visitor], newcomer: Subnet, limits: VisitorLimits) -> int | None:
    """Place of the connection to close for one more of a subnet; -1 for none, None when the new one finds no room.

    That is the one that has waited longest for a whole request, of the same subnet if that is full, else of the subnets
    that hold most. So half requests cannot keep out a visitor who sends a whole one.
    """
    mine = [visitor.subnet == newcomer for visitor in visitors]
    if newcomer != LOOPBACK and sum(mine) >= limits.per_subnet:
        among = [place for place, is_mine in enumerate(mine) if is_mine]
    elif len(visitors) >= limits.connections:
        waiting = [visitor.subnet for visitor in visitors if visitor.waiting_since is not None]
        crowded = fullest(waiting)
        among = [place for place, visitor in enumerate(visitors) if visitor.subnet in crowded]
    else:
        return -1
    ages = [(since, place) for place in among if (since := visitors[place].waiting_since) is not None]
    return min(ages)[1] if ages else None


def subnet_of_client(client: tuple[str, int] | None) -> Subnet:
    """The subnet of a connection's other end."""
    host = "" if client is None else client[0]
    try:
        ip = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return LOOPBACK  # a Unix socket has no address
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return LOOPBACK if ip.is_loopback else subnet_of(f"/ip{ip.version}/{ip}")


def bounded_protocol(limits: VisitorLimits) -> type[asyncio.Protocol]:
    """uvicorn's protocol within these limits."""

    class Bounded(_BoundedProtocol):
        pass

    Bounded.limits = limits
    return Bounded


class _BoundedProtocol(H11Protocol):
    """A connection of uvicorn that waits no longer than its limits say."""

    limits = VisitorLimits()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection in, in another one's place if there is no room."""
        others = [other for other in self.connections if isinstance(other, _BoundedProtocol)]
        super().connection_made(transport)
        self.subnet = subnet_of_client(self.client)
        self._awaits: object = None
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self.waiting_since: float | None = None
        place = displaced([Visitor(other.subnet, other.waiting_since) for other in others], self.subnet, self.limits)
        if place is None:
            self.transport.abort()
            return
        if place >= 0:
            others[place].transport.abort()
            self.connections.discard(others[place])  # the loop tells the protocol later
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline of a connection that has ended."""
        self._stop_waiting()
        self._read_on()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take in a part of a request."""
        super().data_received(data)
        self._await_request()

    def on_response_complete(self) -> None:
        """Wait for the next request; a part of it may be here."""
        super().on_response_complete()
        self._await_request()

    def pause_writing(self) -> None:
        """The visitor does not read what it asked for."""
        super().pause_writing()
        self._stalled = self.loop.call_later(self.limits.read_s, self.transport.abort)

    def resume_writing(self) -> None:
        """The visitor reads on."""
        super().resume_writing()
        self._read_on()

    def _await_request(self) -> None:
        """Set the deadline of what is awaited now, unless that was awaited before."""
        awaits: Any = self.conn.their_state
        if self.transport.is_closing() or awaits not in (h11.IDLE, h11.SEND_BODY):
            self._stop_waiting()
            return
        if awaits is self._awaits:
            return
        self._stop_waiting()
        self._awaits, self.waiting_since = awaits, self.loop.time()
        seconds = self.limits.header_s if awaits is h11.IDLE else self.limits.body_s
        self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._awaits = self._deadline = self.waiting_since = None

    def _read_on(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
        self._stalled = None
