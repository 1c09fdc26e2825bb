"""The shell of a node: pumps the pure core over a transport on asyncio.

Frames to one neighbour leave in order, one at a time; weight chunks queue apart from the rest, so a transfer never
delays gossip. Every input is followed by one pump, and inputs of one turn of the event loop share it: that is what
lets the core coalesce messages into frames.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from p2prl.clock import Clock
from p2prl.errors import P2PRLError, TransportError
from p2prl.net.ports import Transport
from p2prl.net.process.bandwidth import Uplink
from p2prl.protocol.digests import digest
from p2prl.protocol.identity import PeerId
from p2prl.swarm.events import Dial, Event, LookUp, Register, Send
from p2prl.swarm.node import Node

_SEND_TIMEOUT_S = 10.0
"""A control frame not handed over within this time means the link is dead."""

_BULK_TIMEOUT_S = 120.0
"""A 4 MiB chunk at 300 kbit/s; slower links follow only every few versions."""

_QUEUED_FRAMES = 512
"""Control frames waiting for one neighbour before it counts as dead: it has stopped reading."""

log = logging.getLogger("p2prl.net")


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
        uplink: Uplink | None = None,
    ) -> None:
        """With an uplink, chunks are counted and their senders' budget and measured rate reach the node."""
        self._node = node
        self._transport = transport
        self._clock = clock
        self._on_event = on_event
        self._uplink = uplink
        self._directory_key = digest("p2prl/directory/v1", run)
        self._control: dict[PeerId, deque[bytes]] = {}
        self._bulk: dict[PeerId, deque[bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._speaking: set[asyncio.Task[None]] = set()
        """Tasks that hand over control frames; each ends when its neighbour has them all."""
        self._looking_up = False
        self._pump_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        transport.set_receiver(self._on_frame)

    async def wait(self) -> None:
        """Return only by raising: the error that ended the node."""
        await self._failure

    async def say_last_words(self, timeout_s: float) -> None:
        """Wait until neighbours have every control frame there is for them, and at most `timeout_s`."""
        self._pump()
        if self._speaking:
            await asyncio.wait(self._speaking, timeout=timeout_s)

    async def close(self) -> None:
        """Stop every task; the transport is the caller's to close."""
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if not self._failure.done():
            self._failure.cancel()

    def wake(self) -> None:
        """Something changed in the node: pump once in this turn of the loop."""
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
        self._node.set_addresses(self._transport.addresses, now)  # they change as relays and routers come
        if self._uplink is not None:
            self._node.allow_uploads(not self._uplink.is_spent())
        if self._node.next_deadline() <= now:
            self._node.handle_timer(now)
        for command in self._node.commands(now):
            match command:
                case Send(peer=peer, frame=frame, bulk=bulk):
                    self._enqueue(peer, frame, bulk=bulk)
                case Dial(peer=peer, addresses=addresses):
                    self._spawn(self._dial(peer, addresses))
                case Register(record=record, expires_at=expires_at):
                    self._spawn(self._register(record, expires_at))
                case LookUp() if not self._looking_up:
                    self._looking_up = True
                    self._spawn(self._look_up())
                case LookUp():
                    pass  # the last one is still on its way
        while (event := self._node.next_event()) is not None:
            self._on_event(event)
        if self._timer is not None:
            self._timer.cancel()
        delay = max(0.01, self._node.next_deadline() - now)
        self._timer = asyncio.get_running_loop().call_later(delay, self.wake)

    def _guard(self, step: Callable[[], None]) -> None:
        """Run a step of the core; what it raises (a full disk) ends the node and reaches `wait`."""
        try:
            step()
        except P2PRLError as error:
            if not self._failure.done():
                self._failure.set_exception(error)

    def _enqueue(self, peer: PeerId, frame: bytes, *, bulk: bool) -> None:
        queues = self._bulk if bulk else self._control
        queue = queues.get(peer)
        if queue is None:
            queue = queues[peer] = deque()
            if bulk:
                self._spawn(self._send_bulk(peer, queue))
            else:
                speaking = self._spawn(self._send_control(peer, queue))
                self._speaking.add(speaking)
                speaking.add_done_callback(self._speaking.discard)
        if len(queue) >= _QUEUED_FRAMES:
            self._lost(peer)
            return
        queue.append(frame)

    async def _send_control(self, peer: PeerId, queue: deque[bytes]) -> None:
        """Send until the queue is empty, then end: a peer that went away leaves nothing behind."""
        while queue:
            try:
                await self._transport.send(peer, queue.popleft(), timeout_s=_SEND_TIMEOUT_S)
            except TransportError as error:
                log.debug("send to %s failed: %s", peer, error)
                queue.clear()
                self._lost(peer)
        del self._control[peer]

    async def _send_bulk(self, peer: PeerId, queue: deque[bytes]) -> None:
        while queue:
            done, frame, carried = 1, queue.popleft(), 0
            if self._uplink is not None:
                self._uplink.sending(len(frame))
            try:
                await self._transport.send(peer, frame, timeout_s=_BULK_TIMEOUT_S)
                carried = len(frame)
            except TransportError as error:
                log.debug("chunk to %s failed: %s", peer, error)
                # Chunks nobody waits for any more: a peer that came back never asked for them and would blame us.
                done += len(queue)
                queue.clear()
            if self._uplink is not None and self._uplink.sent(peer, carried):
                self._node.set_upload_rate(self._uplink.rate_bytes_s)
            for _ in range(done):
                self._node.upload_done(peer)
            self.wake()
        del self._bulk[peer]

    async def _dial(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        for address in addresses:
            try:
                reached = await self._transport.connect(address)
            except TransportError as error:
                log.debug("dial of %s at %s failed: %s", peer, address, error)
                continue
            if reached == peer:
                self._node.connected(peer, self._clock.now())
                self.wake()
                return
        self._node.dial_failed(peer, self._clock.now())
        self.wake()

    async def _register(self, record: bytes, expires_at: float) -> None:
        try:
            await self._transport.put_record(self._directory_key, record, expires_at)
        except TransportError as error:
            log.debug("directory record not stored: %s", error)

    async def _look_up(self) -> None:
        try:
            records = await self._transport.get_records(self._directory_key)
        except TransportError as error:
            log.debug("directory lookup failed: %s", error)
            return
        finally:
            self._looking_up = False
        self._node.looked_up(list(records.values()), self._clock.now())
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
