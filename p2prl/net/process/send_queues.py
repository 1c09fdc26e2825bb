"""Queues of outgoing frames: per neighbor one of control frames and one of chunks, each sent by its own task.

Frames to one neighbor leave in order, control frames one at a time, chunks one behind the other without waiting for a
round trip. Chunks queue apart from the rest, so that a transfer never delays gossip.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from p2prl.errors import TransportError
from p2prl.net.ports import Transport
from p2prl.net.process.bandwidth import UploadBudget
from p2prl.protocol.identity import PeerId
from p2prl.swarm.node import Node

_SEND_TIMEOUT_S = 10.0
"""A control frame not handed over within this time means the link is dead."""

_BULK_TIMEOUT_S = 120.0
"""A 4 MiB chunk at 300 kbit/s; slower links follow only every few versions."""

IN_FLIGHT_BYTES = 8 * 1024 * 1024
"""Bytes of chunks handed to the transport and not acknowledged, for one neighbor: 200 Mbit/s over 0.3 s.
The relay's upload slots bound their sum over all neighbors, and the bytes on slow lines long before."""

_MOST_FLOWING = 4_096

_MAX_QUEUED_FRAMES = 512
"""Control frames queued for one neighbor at which it counts as dead: it has stopped reading."""

log = logging.getLogger("p2prl.net")


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

        With a budget, chunks are counted, and a measured upload rate reaches the node.
        """
        self._node = node
        self._transport = transport
        self._budget = budget
        self._spawn = spawn
        self._on_lost = on_lost
        self._on_chunk_done = on_chunk_done
        self._control: dict[PeerId, deque[bytes]] = {}
        self._bulk: dict[PeerId, deque[bytes]] = {}
        self._control_tasks: set[asyncio.Task[None]] = set()
        self._flowing: set[PeerId] = set()
        """Neighbors that acknowledged the last chunk."""

    def add(self, peer: PeerId, frame: bytes, *, bulk: bool) -> None:
        """Queue a frame."""
        queues = self._bulk if bulk else self._control
        queue = queues.get(peer)
        if queue is None:
            queue = queues[peer] = deque()
            if bulk:
                self._spawn(self._send_bulk(peer, queue))
            else:
                sending = self._spawn(self._send_control(peer, queue))
                self._control_tasks.add(sending)
                sending.add_done_callback(self._control_tasks.discard)
        if len(queue) >= _MAX_QUEUED_FRAMES:
            self._on_lost(peer)
            return
        queue.append(frame)

    async def flush_control(self, timeout_s: float) -> None:
        """Wait until the neighbors have received every queued control frame, at most `timeout_s`."""
        if self._control_tasks:
            await asyncio.wait(self._control_tasks, timeout=timeout_s)

    async def _send_control(self, peer: PeerId, queue: deque[bytes]) -> None:
        """Send until the queue is empty, then end, so that no task outlives a peer that left."""
        while queue:
            try:
                await self._transport.send(peer, queue.popleft(), timeout_s=_SEND_TIMEOUT_S)
            except TransportError as error:
                log.debug("send to %s failed: %s", peer, error)
                queue.clear()
                self._on_lost(peer)
        del self._control[peer]

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
