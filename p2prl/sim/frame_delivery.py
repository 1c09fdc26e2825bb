"""Frame delivery between simulated machines: bandwidth, latency, loss, order, crashes, and the trace of a run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from blake3 import blake3

from p2prl.protocol.identity import PeerId
from p2prl.sim.link_conditions import ExtraDelay, LinkConditions, Partition, single_messages
from p2prl.sim.machines import Host, Incarnation
from p2prl.sim.virtual_time import START, VirtualLoop
from p2prl.swarm.events import Send


@dataclass(slots=True)
class Counters:
    """Traffic of a simulated network."""

    frames: int = 0
    """Frames delivered."""
    bytes: int = 0
    """Total bytes of the delivered frames."""
    bulk_bytes: int = 0
    """Bytes of delivered weight chunks."""
    lost: int = 0
    """Frames lost at random, to a partition or to a crash."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Flight:
    """A frame in transit, with the incarnations of both ends when it was sent."""

    source: PeerId
    sender: Host | None
    sent_by: Incarnation
    departure: float
    receiver: Host
    to: Incarnation
    frame: bytes
    bulk: bool


class FrameDelivery:
    """Carries frames and dials between the hosts of one network."""

    def __init__(
        self,
        loop: VirtualLoop,
        rng: random.Random,
        links: LinkConditions,
        delay: ExtraDelay | None,
        wake: Callable[[Host], None],
    ) -> None:
        """`wake` schedules a turn of a host whose node has received something."""
        self.hosts: dict[PeerId, Host] = {}
        self.counters = Counters()
        self.partitions: list[Partition] = []
        self.trace = blake3()
        self._loop = loop
        self._rng = rng
        self._links = links
        self._delay = delay
        self._wake = wake
        self.strangers: set[PeerId] = set()
        """Peers without a node that take every frame."""
        self.addresses: dict[PeerId, str] = {}
        """Where the connections of some peers come from; of the others no address is reported."""
        self._last_arrival: dict[tuple[PeerId, PeerId, bool], float] = {}

    def send(self, source: PeerId, sender: Host | None, command: Send) -> None:
        """Send a frame; `sender` is None for one that does not come from a hosted machine."""
        if self._delay is not None and not command.bulk:
            # Messages are packed into one frame to save bytes; a delayed one must not delay the others.
            for frame in single_messages(command.frame):
                extra = self._delay(self._rng, source, command.peer, frame)
                self._transmit(source, sender, command.peer, frame, bulk=False, extra_s=extra)
        else:
            self._transmit(source, sender, command.peer, command.frame, bulk=command.bulk, extra_s=0.0)

    def dial(self, dialer: Host, peer: PeerId, addresses: Iterable[str] | None = None) -> None:
        """Open a link to a peer, or fail after the time a real dial takes to fail.

        A peer with a place of its own is reached only at that address; None dials it wherever it is.
        """
        target, incarnation = self.hosts.get(peer), dialer.incarnation
        place = self.addresses.get(peer, "")
        at_home = addresses is None or any(address.startswith(place) for address in addresses)
        up = target is not None and target.node is not None and target.dialable and at_home
        if up and not self._separated(dialer.peer, peer):
            wait = 2 * self._links.latency.draw(self._rng)
        else:
            wait = self._links.timeout_s if up else self._links.refused_s

        def finish() -> None:
            if dialer.node is None or dialer.incarnation != incarnation:
                return
            now = self._loop.now + dialer.clock_offset_s
            there = self.hosts.get(peer)
            if up and there is not None and there.node is not None and not self._separated(dialer.peer, peer):
                if peer in self.addresses:
                    dialer.node.note_address(peer, self.addresses[peer])
                dialer.node.connected(peer, now)
            else:
                dialer.node.dial_failed(peer, now)
            self._wake(dialer)

        self._loop.at(self._loop.now + wait, finish)

    def _transmit(
        self, source: PeerId, sender: Host | None, destination: PeerId, frame: bytes, *, bulk: bool, extra_s: float
    ) -> None:
        receiver = self.hosts.get(destination)
        departure = self._loop.now
        if sender is not None and (bulk or sender.shares_uplink):
            sender.upload_free = max(departure, sender.upload_free) + len(frame) / sender.upload_bytes_s
            departure = sender.upload_free if bulk else departure
        incarnation = sender.incarnation if sender is not None else Incarnation(0)
        if destination in self.strangers:
            return
        if receiver is None or receiver.node is None or self._separated(source, destination):
            self.counters.lost += 1
            up = receiver is not None and receiver.node is not None
            wait = self._links.timeout_s if up else self._links.refused_s
            if sender is not None:
                fail = partial(self._send_failed, sender, incarnation, destination, bulk)
                self._loop.at(self._loop.now + wait, fail)
            return
        if bulk and sender is not None:
            self._loop.at(departure, partial(self._upload_done, sender, incarnation, destination))
        if self._rng.random() < self._links.loss:
            self.counters.lost += 1
            return
        arrival = departure + self._links.latency.draw(self._rng) + extra_s
        if bulk:
            begins = max(arrival, receiver.download_free)
            arrival = receiver.download_free = begins + len(frame) / receiver.download_bytes_s
        size_class = (source, destination, bulk)
        if not extra_s and self._rng.random() >= self._links.reorder:
            arrival = self._last_arrival[size_class] = max(arrival, self._last_arrival.get(size_class, 0.0))
        flight = _Flight(
            source=source,
            sender=sender,
            sent_by=incarnation,
            departure=departure,
            receiver=receiver,
            to=receiver.incarnation,
            frame=frame,
            bulk=bulk,
        )
        self._loop.at(arrival, partial(self._deliver, flight))

    def _deliver(self, flight: _Flight) -> None:
        receiver, sender, now = flight.receiver, flight.sender, self._loop.now
        queued_at_crash = (
            sender is not None and sender.incarnation != flight.sent_by and flight.departure > sender.crashed_at
        )
        if (
            receiver.node is None
            or receiver.incarnation != flight.to
            or queued_at_crash
            or self._separated(flight.source, receiver.peer)
        ):
            self.counters.lost += 1
            return
        self.counters.frames += 1
        self.counters.bytes += len(flight.frame)
        self.counters.bulk_bytes += len(flight.frame) if flight.bulk else 0
        moment = round((now - START) * 1e6).to_bytes(8, "little")
        parts = (moment, flight.source.encode(), receiver.peer.encode(), blake3(flight.frame).digest())
        self.trace.update(b"".join(parts))
        address = self.addresses.get(flight.source)
        if address is not None and receiver.noted.get(flight.source) != address:
            receiver.noted[flight.source] = address
            receiver.node.note_address(flight.source, address)
        receiver.node.receive(flight.frame, flight.source, now + receiver.clock_offset_s)
        self._wake(receiver)

    def _send_failed(self, sender: Host, incarnation: Incarnation, peer: PeerId, bulk: bool) -> None:
        if sender.node is None or sender.incarnation != incarnation:
            return
        if bulk:
            sender.node.upload_done(peer, False)
        else:
            sender.node.lost(peer, self._loop.now + sender.clock_offset_s)
        self._wake(sender)

    def _upload_done(self, sender: Host, incarnation: Incarnation, peer: PeerId) -> None:
        if sender.node is not None and sender.incarnation == incarnation:
            sender.node.upload_done(peer)
            self._wake(sender)

    def _separated(self, one: PeerId, other: PeerId) -> bool:
        return any(partition.separates(one, other, self._loop.now) for partition in self.partitions)
