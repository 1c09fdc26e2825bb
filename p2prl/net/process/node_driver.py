"""Asyncio driver of a node: feeds the pure state machine from a transport, and executes its commands.

Every input is followed by one pump, and the inputs of one turn of the event loop share it, so that the core can put
several messages into one frame.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from p2prl.clock import Clock
from p2prl.errors import P2PRLError, TransportError
from p2prl.net.ports import MeetingTransport, Transport
from p2prl.net.process.dial_resolution import resolved
from p2prl.net.process.key_use import KeyUse
from p2prl.net.process.send_queues import SendQueues
from p2prl.net.process.upload_budget import UploadBudget
from p2prl.protocol.directory_keys import name_key, run_key
from p2prl.protocol.identity import PeerId
from p2prl.swarm.events import Dial, Event, LookUp, Meet, Register, Send
from p2prl.swarm.node import Node

log = logging.getLogger("p2prl.net")


class RunDirectory:
    """A run's peer records in the directory: one read at a time, and writes wait for it."""

    def __init__(self, transport: Transport, run: bytes, key_use: KeyUse | None = None) -> None:
        """`key_use` detects a record that another process wrote with our key."""
        self._transport = transport
        self._run = run
        self._key_use = key_use
        self._idle = asyncio.Event()
        self._idle.set()

    def begin_read(self) -> bool:
        """Reserve the next `read`. False while another one is in progress."""
        if not self._idle.is_set():
            return False
        self._idle.clear()
        return True

    async def read(self, wanted: LookUp) -> list[bytes] | None:
        """The records that are there of those wanted; None when the directory does not answer."""
        names = {name_key(self._run, peer): peer for peer in wanted.peers}
        keys = [*names, *([run_key(self._run)] if wanted.is_sample else [])]
        try:
            answers = await asyncio.gather(*map(self._transport.get_records, keys))
        except TransportError as error:
            log.debug("directory lookup failed: %s", error)
            return None
        finally:
            self._idle.set()
        found: dict[PeerId, list[bytes]] = {}
        for key, records in zip(keys, answers, strict=True):
            for owner, record in records.items():
                if key not in names or owner == names[key]:  # anybody may write beside the owner
                    found.setdefault(owner, []).append(record)
        if self._key_use is not None:
            self._key_use.read(found)
        return [record for records in found.values() for record in records]

    async def write(self, register: Register) -> None:
        """Store our record after any read in progress: it would overwrite evidence that another process uses our
        key."""
        await self._idle.wait()
        keys = [run_key(self._run)] * register.under_run
        keys += [name_key(self._run, self._transport.peer_id)] * register.under_name
        for key in keys:
            try:
                await self._transport.put_record(key, register.record, register.expires_at)
            except TransportError as error:
                log.debug("directory record not stored: %s", error)


_HEAD_START_S = 2.0
"""How long a dial is alone before the next address of the peer is tried too: a SYN and its first repetition, so that
a circuit, the last of the addresses, seldom wins against a direct connection."""


class NodeDriver:
    """Runs one node until `close`."""

    def __init__(
        self,
        node: Node,
        transport: Transport,
        clock: Clock,
        run: bytes,
        on_event: Callable[[Event], None],
        *,
        budget: UploadBudget | None = None,
        key_use: KeyUse | None = None,
    ) -> None:
        """With a budget, chunks are counted, and the monthly limit and the measured rate reach the node.

        `key_use` watches the directory for another process that uses our key.
        """
        self._node = node
        self._transport = transport
        self._clock = clock
        self._on_event = on_event
        self._budget = budget
        self._directory = RunDirectory(transport, run, key_use)
        self._queues = SendQueues(
            node, transport, budget, spawn=self._spawn, on_lost=self._lost, on_chunk_done=self.wake
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._pump_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        transport.set_receiver(self._on_frame)

    async def wait(self) -> None:
        """Wait until the node fails, then raise its error."""
        await self._failure

    async def flush_control(self, timeout_s: float) -> None:
        """Wait until the neighbors have received every pending control frame, at most `timeout_s`."""
        self._pump()
        await self._queues.flush_control(timeout_s)

    async def close(self) -> None:
        """Stop every task. The caller closes the transport."""
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if not self._failure.done():
            self._failure.cancel()

    def wake(self) -> None:
        """Pump once in this turn of the loop: something changed in the node."""
        if not self._pump_due:
            self._pump_due = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _on_frame(self, peer: PeerId, frame: bytes) -> None:
        self._guard(lambda: self._node.receive(frame, peer, self._clock.now()))
        self.wake()

    def _pump(self) -> None:
        self._pump_due = False
        self._guard(self._pump_node)

    def _pump_node(self) -> None:
        now = self._clock.now()
        self._node.set_addresses(self._transport.addresses, now)  # they change as relays and routers do
        if self._budget is not None:
            self._node.allow_uploads(not self._budget.is_spent())
        if self._node.next_deadline() <= now:
            self._node.handle_timer(now)
        for command in self._node.commands(now):
            match command:
                case Send(peer=peer, frame=frame, bulk=bulk):
                    self._queues.add(peer, frame, bulk=bulk)
                case Dial(peer=peer, addresses=addresses):
                    self._spawn(self._dial(peer, addresses))
                case Meet(peer=peer, address=address, dials=dials):
                    self._spawn(self._meet(peer, address, dials=dials))
                case Register():
                    self._spawn(self._directory.write(command))
                case LookUp() if self._directory.begin_read():
                    self._spawn(self._look_up(command))
                case LookUp():
                    pass  # the last one is not done yet
        while (event := self._node.next_event()) is not None:
            self._on_event(event)
        if self._timer is not None:
            self._timer.cancel()
        delay = max(0.01, self._node.next_deadline() - now)
        self._timer = asyncio.get_running_loop().call_later(delay, self.wake)

    def _guard(self, step: Callable[[], None]) -> None:
        """Run a step of the core; an error it raises (a full disk) ends the node and reaches `wait`."""
        try:
            step()
        except P2PRLError as error:
            if not self._failure.done():
                self._failure.set_exception(error)

    async def _dial(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """Dial the addresses one after the other, each as soon as the one before has failed or had its head start.

        A firewall that swallows packets, or a family that leads nowhere, would otherwise cost a whole timeout each.
        """
        dials: set[asyncio.Task[PeerId | None]] = set()
        waiting = list(addresses)
        reached = False
        try:
            while not reached and (dials or waiting):
                if waiting:
                    dials.add(asyncio.create_task(self._dial_one(peer, waiting.pop(0))))
                done, dials = await asyncio.wait(
                    dials, timeout=_HEAD_START_S if waiting else None, return_when=asyncio.FIRST_COMPLETED
                )
                reached = any(task.result() == peer for task in done)
        finally:
            for task in dials:
                task.cancel()
            await asyncio.gather(*dials, return_exceptions=True)
        if reached:
            self._node.connected(peer, self._clock.now())
        else:
            self._node.dial_failed(peer, self._clock.now())
        self.wake()

    async def _dial_one(self, peer: PeerId, address: str) -> PeerId | None:
        try:
            return await self._transport.connect(await resolved(address, self._node.dial_rules))
        except TransportError as error:
            log.debug("dial of %s at %s failed: %s", peer, address, error)
            return None

    async def _meet(self, peer: PeerId, address: str, *, dials: bool) -> None:
        """Dial a peer while it dials this one. Who is dialed learns of the connection by the other's first frame."""
        transport, where = self._transport, f"{address}/p2p/{peer}"
        if not isinstance(transport, MeetingTransport):
            return
        try:
            await transport.meet(where, dials=dials)
        except TransportError as error:
            log.debug("no meeting with %s at %s: %s", peer, address, error)
            return
        if dials:
            self._node.connected(peer, self._clock.now(), chosen=False)
            self.wake()

    async def _look_up(self, wanted: LookUp) -> None:
        records = await self._directory.read(wanted)
        if records is not None:
            self._node.looked_up(records, self._clock.now())
            self.wake()

    def _lost(self, peer: PeerId) -> None:
        self._node.lost(peer, self._clock.now())
        self.wake()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._failure.done():
            self._failure.set_exception(error)


class NodeGuard:
    """`PeerGuard` of one node."""

    def __init__(self, node: Node, clock: Clock) -> None:
        self._node = node
        self._clock = clock
        self.on_fault: Callable[[], None] = lambda: None
        """Called after a fault: the node may have something to report."""

    def note_address(self, peer: PeerId, address: str) -> None:
        self._node.note_address(peer, address)

    def is_banned(self, peer: PeerId) -> bool:
        return self._node.is_banned(peer, self._clock.now())

    def importance(self, peer: PeerId) -> int:
        """0 without a link, otherwise 1 and more by the link's class."""
        kind = self._node.link_class(peer, self._clock.now())
        return 0 if kind is None else 1 + kind

    def fault(self, peer: PeerId, reason: str) -> None:
        self._node.fault(peer, reason, self._clock.now())
        self.on_fault()
