"""A network of swarm nodes on virtual time, with faults. One seed gives one trace.

It does for `p2prl.swarm.node.Node` what `p2prl.net.process.node_driver` does over sockets: passes in frames and timers,
carries out commands and passes events to the owner. Every run of one seed gives the same `trace`, a hash over each
delivered frame, on any machine and with any hash randomization.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from p2prl.protocol.identity import PeerId
from p2prl.sim.frame_delivery import Counters, FrameDelivery
from p2prl.sim.link_conditions import ExtraDelay, LinkConditions, Partition
from p2prl.sim.machines import Host, HostClock, Incarnation, MakeNode
from p2prl.sim.virtual_directory import VirtualDirectory
from p2prl.sim.virtual_time import START, Action, LoopClock, VirtualLoop
from p2prl.swarm.events import Dial, Event, LookUp, Register, Send
from p2prl.swarm.node import Node

_SOONEST_S = 0.01
"""Shortest interval of a node's timer, as in `p2prl.net.process.node_driver`, so that a core whose deadline is in the
past does not spin."""


class VirtualNetwork:
    """All machines of a swarm. Times are seconds since the Unix epoch, beginning at `START`."""

    def __init__(
        self,
        seed: int,
        *,
        links: LinkConditions | None = None,
        delay: ExtraDelay | None = None,
        directory_needs_links: bool = False,
    ) -> None:
        """`directory_needs_links` denies the directory to a node without links, as sockets do."""
        self.seed = seed
        self._directory_needs_links = directory_needs_links
        self.links = links or LinkConditions()
        self.loop = VirtualLoop()
        self.loop_clock = LoopClock(self.loop)
        rng = random.Random(f"network/{seed}")  # noqa: S311 - simulated, not secret
        self._delivery = FrameDelivery(self.loop, rng, self.links, delay, self._wake)
        self._hosts = self._delivery.hosts
        self._directory = VirtualDirectory(self.loop, rng, self.links.directory_latency)
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
        """Hash over (time in µs, source, destination, frame) of every frame so far, in order of delivery."""
        return self._delivery.trace.hexdigest()

    @property
    def counters(self) -> Counters:
        """Traffic so far."""
        return self._delivery.counters

    def at(self, when: float, action: Action) -> None:
        """Run `action` at virtual time `when` (absolute seconds)."""
        self.loop.at(when, action)

    def after(self, delay_s: float, action: Action) -> None:
        """Run `action` in `delay_s` virtual seconds."""
        self.loop.at(self.now + delay_s, action)

    def run_until(self, when: float) -> None:
        """Advance virtual time to `when` (absolute seconds)."""
        self.loop.run_until(when, after_each=self._check if self._checks else None)

    def run_for(self, seconds: float) -> None:
        """Advance virtual time by `seconds`."""
        self.run_until(self.now + seconds)

    def check_always(self, check: Action) -> None:
        """Run `check` after every step; it raises `AssertionError` when an invariant is violated."""
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
        shares_uplink: bool = False,
    ) -> Host:
        """Start a machine for `peer`. Bandwidths (bytes/s) limit bulk frames; 20 and 100 Mbit/s by default.

        `dialable=False` is a peer behind a NAT: it can dial but not be dialed. Its node still knows its address.
        With `shares_uplink` chunks wait for the control frames before them.
        """
        host = Host(
            peer, run, make, on_event, upload_bytes_s, download_bytes_s, dialable, clock_offset_s, shares_uplink
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
        """Carry out the node's commands in this turn: its owner has acted on it."""
        self._wake(self._hosts[peer])

    def address(self, peer: PeerId) -> str:
        """The multiaddr of a machine."""
        return f"{self._delivery.addresses.get(peer, '/ip4/127.0.0.1/tcp/4001')}/p2p/{peer}"

    def place(self, peer: PeerId, address: str) -> None:
        """Say where a peer's connections come from, a multiaddr without `/p2p`. Call it before `host`."""
        self._delivery.addresses[peer] = address

    def add_stranger(self, peer: PeerId, address: str) -> None:
        """A peer without a node: it takes every frame, and sends what `inject` sends in its name."""
        self._delivery.strangers.add(peer)
        self.place(peer, address)

    # --- faults and chosen traffic -----------------------------------------------------------------------------

    def connect(self, peer: PeerId, other: PeerId, address: str | None = None) -> None:
        """`peer` dials `other` now, as it would a bootstrap address of the join link; None: wherever it is."""
        self._delivery.dial(self._hosts[peer], other, None if address is None else (address,))

    def crash(self, peer: PeerId) -> None:
        """Power off: queued frames are lost, frames in transit still arrive elsewhere."""
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
        """Cut the groups off from each other between two absolute times; peers in no group can reach everyone."""
        side = {peer: number for number, group in enumerate(groups) for peer in group}
        self._delivery.partitions.append(Partition(side, begins, ends))

    def put_record(self, run: bytes, owner: PeerId, record: bytes, expires_at: float) -> None:
        """Write arbitrary bytes into the directory, as an adversary can under its own peer id."""
        self._directory.put(run, owner, record, expires_at)

    def inject(self, source: PeerId, destination: PeerId, frame: bytes) -> None:
        """Send an arbitrary frame from `source`, which need not be a hosted machine."""
        self._delivery.send(source, self._hosts.get(source), Send(destination, frame, bulk=False))

    # --- one machine's turn ------------------------------------------------------------------------------------

    def _boot(self, host: Host) -> None:
        # Each node has its own random generator, so that adding a machine does not change the others' draws.
        rng = random.Random(f"node/{self.seed}/{host.peer}/{host.incarnation}")  # noqa: S311
        host.node = host.make(self.now + host.clock_offset_s, rng)
        host.node.set_addresses((self.address(host.peer),), self.now + host.clock_offset_s)
        host.armed = float("inf")
        host.pump_due = False
        host.noted = {}
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
                    self._delivery.send(host.peer, host, command)
                case Dial(peer=peer, addresses=addresses):
                    self._delivery.dial(host, peer, addresses)
                case Register() | LookUp() if self._directory_needs_links and not node.connections.links:
                    pass
                case Register():
                    self._directory.register(host.run, host.peer, command, host.clock_offset_s)
                case LookUp():
                    self._look_up(host, command)
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

    def _look_up(self, host: Host, wanted: LookUp) -> None:
        incarnation = host.incarnation

        def answer(records: list[bytes]) -> None:
            if host.node is None or host.incarnation != incarnation:
                return
            host.node.looked_up(records, self.now + host.clock_offset_s)
            self._wake(host)

        self._directory.look_up(host.run, wanted, answer)

    def _check(self) -> None:
        for check in self._checks:
            check()
