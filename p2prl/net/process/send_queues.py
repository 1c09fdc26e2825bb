"""Queues of outgoing frames: per neighbor one of control frames and one of chunks, each sent by its own task.

Frames to one neighbor leave in order, one behind the other without waiting for a round trip. Chunks queue apart from
the rest, so that a transfer never delays gossip.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from p2prl.errors import TransportError
from p2prl.net.ports import Transport
from p2prl.net.process.upload_budget import UploadBudget
from p2prl.protocol import limits
from p2prl.protocol.identity import PeerId
from p2prl.swarm.node import Node

_SEND_TIMEOUT_S = 10.0
"""A control frame not handed over within this time means the link is dead."""

_BULK_TIMEOUT_S = 120.0
"""A 4 MiB chunk at 300 kbit/s; slower links follow only every few versions."""

IN_FLIGHT_BYTES = 8 * 1024 * 1024
"""Bytes of chunks handed to the transport and not acknowledged, for one neighbor: 200 Mbit/s over 0.3 s.
The relay's upload slots bound their sum over all neighbors, and the bytes on slow lines long before."""

CONTROL_IN_FLIGHT_BYTES = limits.MAX_CONTROL_FRAME_BYTES
"""The same of control frames: one of the largest, or many small ones. One frame for each round trip would be one grant
for each: over 150 ms a transfer took three chunks a round trip, whatever the line."""

_MOST_FLOWING = 4_096

_MAX_QUEUED_FRAMES = 512
"""Control frames queued for one neighbor, or not acknowledged by it, at which it counts as dead: it has stopped
reading."""

MAX_QUEUED_BYTES = 32 * 1024 * 1024
"""Bytes of these, at which it counts as dead too: eight full answers to its wants, which may ask for one every turn, or
half a minute of a line of 8 Mbit/s."""

MAX_WAITING_BYTES = 128 * 1024 * 1024
"""Bytes of control frames that wait behind those under way, over all neighbors, since keys are free: an eighth of this
process's memory. Past it the neighbor for which most wait counts as dead."""

log = logging.getLogger("p2prl.net")


@dataclass(slots=True)
class _ControlFrames:
    """Control frames to one neighbor."""

    queue: deque[bytes] = field(default_factory=deque)
    waiting_bytes: int = 0
    count: int = 0
    """Frames under way."""
    under_way_bytes: int = 0
    failed: bool = False

    @property
    def size_bytes(self) -> int:
        """Bytes of all frames that are not acknowledged."""
        return self.waiting_bytes + self.under_way_bytes

    def fits(self, frame: bytes) -> bool:
        """Whether another frame may leave before the first is acknowledged."""
        return not self.count or self.under_way_bytes + len(frame) <= CONTROL_IN_FLIGHT_BYTES


class SendQueues:
    """Sends a node's frames over a transport."""

    def __init__(
        self,
        node: Node,
        transport: Transport,
        budget: UploadBudget | None,
        *,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        on_lost: Callable[[PeerId], None],
        on_chunk_done: Callable[[], None],
    ) -> None:
        """`on_lost` gets a neighbor that accepts no frames; `on_chunk_done` runs after a finished chunk was reported to
        the node.

        With a budget, every frame is counted, and a measured upload rate reaches the node.
        """
        self._node = node
        self._transport = transport
        self._budget = budget
        self._spawn = spawn
        self._on_lost = on_lost
        self._on_chunk_done = on_chunk_done
        self._control: dict[PeerId, _ControlFrames] = {}
        self.waiting_bytes = 0
        """Bytes of control frames that wait behind those under way, over all neighbors."""
        self._bulk: dict[PeerId, deque[bytes]] = {}
        self._control_tasks: set[asyncio.Task[None]] = set()
        self._flowing: set[PeerId] = set()
        """Neighbors that acknowledged the last chunk."""

    def add(self, peer: PeerId, frame: bytes, *, bulk: bool) -> None:
        """Queue a frame."""
        if not bulk:
            self._add_control(peer, frame)
            return
        queue = self._bulk.get(peer)
        if queue is None:
            queue = self._bulk[peer] = deque()
            self._spawn(self._send_bulk(peer, queue))
        if len(queue) >= _MAX_QUEUED_FRAMES:
            self._on_lost(peer)
            return
        queue.append(frame)

    def _add_control(self, peer: PeerId, frame: bytes) -> None:
        frames = self._control.setdefault(peer, _ControlFrames())
        if frames.count + len(frames.queue) >= _MAX_QUEUED_FRAMES or frames.size_bytes + len(frame) > MAX_QUEUED_BYTES:
            self._give_up(peer)
            return
        while self.waiting_bytes + len(frame) > MAX_WAITING_BYTES:
            largest = max(self._control, key=lambda each: self._control[each].waiting_bytes)
            self._give_up(largest)
            if largest == peer:
                return
        frames.queue.append(frame)
        frames.waiting_bytes += len(frame)
        self.waiting_bytes += len(frame)
        self._send_control(peer, frames)

    def _give_up(self, peer: PeerId) -> None:
        """Drop the control frames that wait for a neighbor: it has lost its link. Those under way fail in time."""
        frames = self._control[peer]
        self.waiting_bytes -= frames.waiting_bytes
        frames.queue.clear()
        frames.waiting_bytes = 0
        self._on_lost(peer)

    async def flush_control(self, timeout_s: float) -> None:
        """Wait until the neighbors have received every queued control frame, at most `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._control_tasks:  # those that end start others
                    await asyncio.wait(self._control_tasks)

    def _send_control(self, peer: PeerId, frames: _ControlFrames) -> None:
        while frames.queue and not frames.failed and frames.fits(frames.queue[0]):
            frame = frames.queue.popleft()
            frames.count += 1
            frames.waiting_bytes -= len(frame)
            self.waiting_bytes -= len(frame)
            frames.under_way_bytes += len(frame)
            sending = self._spawn(self._send_one(peer, frames, frame))
            self._control_tasks.add(sending)
            sending.add_done_callback(self._control_tasks.discard)

    async def _send_one(self, peer: PeerId, frames: _ControlFrames, frame: bytes) -> None:
        if self._budget is not None:
            self._budget.count(len(frame))
        try:
            await self._transport.send(peer, frame, timeout_s=_SEND_TIMEOUT_S)
        except TransportError as error:
            log.debug("send to %s failed: %s", peer, error)
            frames.failed = True
        frames.count -= 1
        frames.under_way_bytes -= len(frame)
        if not frames.failed:
            self._send_control(peer, frames)
        if not frames.count:  # those on their way fail with the stream: the peer is lost once
            self.waiting_bytes -= frames.waiting_bytes
            del self._control[peer]
            if frames.failed:
                self._on_lost(peer)

    async def _send_bulk(self, peer: PeerId, queue: deque[bytes]) -> None:
        """Send until the queue is empty. Once the peer has acknowledged a frame, the next ones follow each other: to a
        peer that is gone only the first is lost."""
        flight: dict[asyncio.Task[None], int] = {}
        while queue or flight:
            while queue and (not flight or (peer in self._flowing and self._fits(flight, queue[0]))):
                frame = queue.popleft()
                flight[self._spawn(self._send_chunk(peer, frame, queue))] = len(frame)
            done, _ = await asyncio.wait(flight, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                del flight[task]
        del self._bulk[peer]

    @staticmethod
    def _fits(flight: Mapping[asyncio.Task[None], int], frame: bytes) -> bool:
        return sum(flight.values()) + len(frame) <= IN_FLIGHT_BYTES

    async def _send_chunk(self, peer: PeerId, frame: bytes, behind: deque[bytes]) -> None:
        done, sent_bytes = 1, 0
        if self._budget is not None:
            self._budget.chunk_leaves(len(frame))
        try:
            await self._transport.send(peer, frame, timeout_s=_BULK_TIMEOUT_S)
            sent_bytes = len(frame)
            if len(self._flowing) >= _MOST_FLOWING:
                self._flowing.clear()
            self._flowing.add(peer)
        except TransportError as error:
            self._flowing.discard(peer)
            log.debug("chunk to %s failed: %s", peer, error)
            # Drop the chunks behind it: a peer that reconnects did not request them and would ban us. Those on their
            # way fail with the stream.
            done += len(behind)
            behind.clear()
        if self._budget is not None and self._budget.chunk_done(peer, sent_bytes):
            self._node.set_upload_rate(self._budget.rate_bytes_s)
        for _ in range(done):
            self._node.upload_done(peer, sent_bytes > 0)
        self._on_chunk_done()
