"""A network of nodes on virtual time: latency, bandwidth, loss, reordering, partitions, crashes; one seed, one trace.

It does for `p2prl.swarm.node.Node` what `p2prl.net.process.node_driver` does over sockets: it feeds frames and
deadlines, carries
out commands and hands events to the owner. Every run of one seed gives the same `trace`, a hash over each delivered
frame, on any machine and under any hash randomisation.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from blake3 import blake3

from p2prl.protocol.identity import PeerId
from p2prl.sim.hosts import (
    Counters,
    ExtraDelay,
    Host,
    HostClock,
    Incarnation,
    LinkConfig,
    LoopClock,
    MakeNode,
    Partition,
    single_messages,
    slow_envelopes,
)
from p2prl.sim.virtual_time import START, Action, VirtualLoop
from p2prl.swarm.events import Dial, Event, LookUp, Register, Send
from p2prl.swarm.node import Node

__all__ = ["Counters", "ExtraDelay", "Host", "HostClock", "LinkConfig", "MakeNode", "VirtualNetwork", "slow_envelopes"]

_SOONEST_S = 0.01
"""A node's timer runs at most this often, as in `p2prl.net.process.node_driver`: a core that asks for the past must
not spin."""


class VirtualNetwork:
    """All machines of a swarm. Times are seconds since the Unix epoch, beginning at `START`."""

    def __init__(self, seed: int, *, links: LinkConfig | None = None, delay: ExtraDelay | None = None) -> None:
        self.seed = seed
        self.links = links or LinkConfig()
        self.counters = Counters()
        self.loop = VirtualLoop()
        self.loop_clock = LoopClock(self.loop)
        self._delay = delay
        self._rng = random.Random(f"network/{seed}")  # noqa: S311 - a simulator's dice
        self._hosts: dict[PeerId, Host] = {}
        self._partitions: list[Partition] = []
        self._last_arrival: dict[tuple[PeerId, PeerId, bool], float] = {}
        self._directory: dict[bytes, dict[PeerId, tuple[bytes, float]]] = {}
        self._trace = blake3()
        self._checks: list[Action] = []

    # --- time --------------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Virtual time, seconds since the Unix epoch."""
        return self.loop.now

    @property
    def elapsed(self) -> float:
        """Virtual seconds since the start."""
        return self.loop.now - START

    @property
    def trace(self) -> str:
        """Hash, so far, over (time in µs, source, destination, frame) of every frame, in order of delivery."""
        return self._trace.hexdigest()

    def at(self, when: float, action: Action) -> None:
        """Run `action` at virtual time `when` (absolute seconds)."""
        self.loop.at(when, action)

    def after(self, delay_s: float, action: Action) -> None:
        """Run `action` in `delay_s` virtual seconds."""
        self.loop.at(self.now + delay_s, action)

    def run_until(self, when: float) -> None:
        """Let virtual time pass up to `when` (absolute seconds)."""
        self.loop.run_until(when, after_each=self._check if self._checks else None)

    def run_for(self, seconds: float) -> None:
        """Let `seconds` of virtual time pass."""
        self.run_until(self.now + seconds)

    def check_always(self, check: Action) -> None:
        """Run `check` after every step: an invariant that raises `AssertionError` where it breaks."""
        self._checks.append(check)

    # --- machines ----------------------------------------------------------------------------------------------

    def host(
        self,
        peer: PeerId,
        run: bytes,
        make: MakeNode,
        on_event: Callable[[Event], None],
        *,
        upload_bytes_s: float = 2.5e6,
        download_bytes_s: float = 12.5e6,
        dialable: bool = True,
        clock_offset_s: float = 0.0,
    ) -> Host:
        """Switch on a machine for `peer`. Bandwidths (bytes/s) bound bulk frames; 20 and 100 Mbit/s by default.

        `dialable=False` is a peer behind a router: it dials, and nobody can dial it. Its node is told its address.
        """
        host = Host(
            peer, run, make, on_event, upload_bytes_s, download_bytes_s, dialable, clock_offset_s
        )  # fmt: skip
        self._hosts[peer] = host
        self._boot(host)
        return host

    def node(self, peer: PeerId) -> Node:
        """The node of a machine that is up; call `wake` after acting on it."""
        node = self._hosts[peer].node
        if node is None:
            raise KeyError(f"{peer} is down")
        return node

    def is_up(self, peer: PeerId) -> bool:
        """Whether a machine is up."""
        host = self._hosts.get(peer)
        return host is not None and host.node is not None

    def clock(self, peer: PeerId) -> HostClock:
        """The machine's own clock."""
        return HostClock(self.loop, self._hosts[peer])

    def wake(self, peer: PeerId) -> None:
        """The owner has acted on the node: carry out its commands in this turn."""
        self._wake(self._hosts[peer])

    def connect(self, peer: PeerId, other: PeerId) -> None:
        """`peer` dials `other` now, as it would a bootstrap address of the join link."""
        self._dial(self._hosts[peer], other)

    def crash(self, peer: PeerId) -> None:
        """Power off: what was queued to be sent is gone, what was in the air still arrives elsewhere."""
        host = self._hosts[peer]
        if host.node is not None:
            host.node = None
            host.crashed_at = self.now
            host.incarnation = Incarnation(host.incarnation + 1)
            host.upload_free = host.download_free = 0.0

    def restart(self, peer: PeerId) -> None:
        """Power on again, with a new node from the same `make`."""
        host = self._hosts[peer]
        if host.node is None:
            self._boot(host)

    def partition(self, groups: Iterable[Iterable[PeerId]], begins: float, ends: float) -> None:
        """Between two absolute times nothing passes between the groups; peers in none of them reach everybody."""
        side = {peer: number for number, group in enumerate(groups) for peer in group}
        self._partitions.append(Partition(side, begins, ends))

    def put_record(self, run: bytes, owner: PeerId, record: bytes, expires_at: float) -> None:
        """Write any bytes into the directory, as a stranger may under its own name."""
        self._directory.setdefault(run, {})[owner] = (record, expires_at)

    def inject(self, source: PeerId, destination: PeerId, frame: bytes) -> None:
        """Send any frame from `source`, which need not be a hosted machine."""
        self._send(source, self._hosts.get(source), Send(destination, frame, bulk=False))

    def address(self, peer: PeerId) -> str:
        """The multiaddr of a machine."""
        return f"/ip4/127.0.0.1/tcp/4001/p2p/{peer}"

    # --- one machine's turn ------------------------------------------------------------------------------------

    def _boot(self, host: Host) -> None:
        # Its dice are its own, so that one machine more or less does not change the others' draws.
        rng = random.Random(f"node/{self.seed}/{host.peer}/{host.incarnation}")  # noqa: S311
        host.node = host.make(self.now + host.clock_offset_s, rng)
        host.node.set_addresses((self.address(host.peer),), self.now + host.clock_offset_s)
        host.armed = float("inf")
        host.pump_due = False
        self._wake(host)

    def _wake(self, host: Host) -> None:
        if not host.pump_due and host.node is not None:
            host.pump_due = True
            incarnation = host.incarnation
            self.loop.at(self.now + self.links.turn_s, lambda: self._pump(host, incarnation))

    def _pump(self, host: Host, incarnation: Incarnation) -> None:
        node = host.node
        if node is None or host.incarnation != incarnation:
            return
        host.pump_due = False
        now = self.now + host.clock_offset_s
        if node.next_deadline() <= now:
            node.handle_timer(now)
        for command in node.commands(now):
            match command:
                case Send():
                    self._send(host.peer, host, command)
                case Dial(peer=peer):
                    self._dial(host, peer)
                case Register(record=record, expires_at=expires_at):
                    self._register(host, record, expires_at - host.clock_offset_s)
                case LookUp():
                    self._look_up(host)
        while (event := node.next_event()) is not None:
            host.on_event(event)
        self._arm(host, node)

    def _arm(self, host: Host, node: Node) -> None:
        due = max(node.next_deadline() - host.clock_offset_s, self.now + _SOONEST_S)
        if due < host.armed:
            host.armed = due
            incarnation = host.incarnation
            self.loop.at(due, lambda: self._timer(host, incarnation, due))

    def _timer(self, host: Host, incarnation: Incarnation, due: float) -> None:
        if host.node is None or host.incarnation != incarnation or host.armed != due:
            return
        host.armed = float("inf")
        if host.node.next_deadline() - host.clock_offset_s <= self.now and not host.pump_due:
            host.pump_due = True
            self._pump(host, incarnation)
        else:
            self._arm(host, host.node)

    def _check(self) -> None:
        for check in self._checks:
            check()

    # --- the air -----------------------------------------------------------------------------------------------

    def _separated(self, one: PeerId, other: PeerId) -> bool:
        for partition in self._partitions:
            if partition.begins <= self.now < partition.ends:
                a, b = partition.side.get(one), partition.side.get(other)
                if a is not None and b is not None and a != b:
                    return True
        return False

    def _send(self, source: PeerId, sender: Host | None, command: Send) -> None:
        if self._delay is not None and not command.bulk:
            # One slow message must not hold up what was packed into the same frame for thrift.
            for frame in single_messages(command.frame):
                extra = self._delay(self._rng, source, command.peer, frame)
                self._transmit(source, sender, command.peer, frame, bulk=False, extra_s=extra)
        else:
            self._transmit(source, sender, command.peer, command.frame, bulk=command.bulk, extra_s=0.0)

    def _transmit(
        self, source: PeerId, sender: Host | None, destination: PeerId, frame: bytes, *, bulk: bool, extra_s: float
    ) -> None:
        receiver = self._hosts.get(destination)
        departure = self.now
        if bulk and sender is not None:
            departure = sender.upload_free = max(self.now, sender.upload_free) + len(frame) / sender.upload_bytes_s
        incarnation = sender.incarnation if sender is not None else Incarnation(0)
        if receiver is None or receiver.node is None or self._separated(source, destination):
            self.counters.lost += 1
            wait = self.links.timeout_s if receiver is not None and receiver.node is not None else self.links.refused_s
            if sender is not None:
                self.after(wait, lambda: self._send_failed(sender, incarnation, destination, bulk=bulk))
            return
        if bulk and sender is not None:
            self.at(departure, lambda: self._upload_done(sender, incarnation, destination))
        if self._rng.random() < self.links.loss:
            self.counters.lost += 1
            return
        arrival = departure + self.links.latency.draw(self._rng) + extra_s
        if bulk:
            begins = max(arrival, receiver.download_free)
            arrival = receiver.download_free = begins + len(frame) / receiver.download_bytes_s
        lane = (source, destination, bulk)
        if not extra_s and self._rng.random() >= self.links.reorder:
            arrival = self._last_arrival[lane] = max(arrival, self._last_arrival.get(lane, 0.0))
        to = receiver.incarnation
        self.at(arrival, lambda: self._deliver(source, sender, incarnation, departure, receiver, to, frame, bulk=bulk))

    def _deliver(
        self,
        source: PeerId,
        sender: Host | None,
        sent_by: Incarnation,
        departure: float,
        receiver: Host,
        to: Incarnation,
        frame: bytes,
        *,
        bulk: bool,
    ) -> None:
        node = receiver.node
        queued_at_crash = sender is not None and sender.incarnation != sent_by and departure > sender.crashed_at
        if node is None or receiver.incarnation != to or queued_at_crash or self._separated(source, receiver.peer):
            self.counters.lost += 1
            return
        self.counters.frames += 1
        self.counters.bytes += len(frame)
        self.counters.bulk_bytes += len(frame) if bulk else 0
        moment = round((self.now - START) * 1e6).to_bytes(8, "little")
        self._trace.update(b"".join((moment, source.encode(), receiver.peer.encode(), blake3(frame).digest())))
        node.receive(frame, source, self.now + receiver.clock_offset_s)
        self._wake(receiver)

    def _send_failed(self, sender: Host, incarnation: Incarnation, peer: PeerId, *, bulk: bool) -> None:
        if sender.node is None or sender.incarnation != incarnation:
            return
        if bulk:
            sender.node.upload_done(peer)
        else:
            sender.node.lost(peer, self.now + sender.clock_offset_s)
        self._wake(sender)

    def _upload_done(self, sender: Host, incarnation: Incarnation, peer: PeerId) -> None:
        if sender.node is not None and sender.incarnation == incarnation:
            sender.node.upload_done(peer)
            self._wake(sender)

    def _dial(self, dialer: Host, peer: PeerId) -> None:
        self.counters.dials += 1
        target, incarnation = self._hosts.get(peer), dialer.incarnation
        up = target is not None and target.node is not None and target.dialable
        if up and not self._separated(dialer.peer, peer):
            wait = 2 * self.links.latency.draw(self._rng)
        else:
            wait = self.links.timeout_s if up else self.links.refused_s

        def settle() -> None:
            if dialer.node is None or dialer.incarnation != incarnation:
                return
            now = self.now + dialer.clock_offset_s
            if up and self.is_up(peer) and not self._separated(dialer.peer, peer):
                dialer.node.connected(peer, now)
            else:
                dialer.node.dial_failed(peer, now)
            self._wake(dialer)

        self.after(wait, settle)

    # --- the directory -----------------------------------------------------------------------------------------

    def _after_directory(self, action: Action) -> None:
        self.after(self.links.directory_latency.draw(self._rng), action)

    def _register(self, host: Host, record: bytes, expires_at: float) -> None:
        self._after_directory(lambda: self.put_record(host.run, host.peer, record, expires_at))

    def _look_up(self, host: Host) -> None:
        self.counters.lookups += 1
        incarnation = host.incarnation

        def answer() -> None:
            if host.node is None or host.incarnation != incarnation:
                return
            records = self._directory.get(host.run, {})
            live = [record for record, expires_at in records.values() if expires_at > self.now]
            host.node.looked_up(live, self.now + host.clock_offset_s)
            self._wake(host)

        self._after_directory(answer)
