"""Upload pacing: chunks are sent at the capped rate, a few kilobytes at a time, the oldest chunk first.

Frames of one size class to one peer are sent in order, but chunks to several peers share the uplink. Sent in parallel,
all would arrive late. Sent one after the other, the first can be relayed while the second is still being sent. A stream
whose receiver reads nothing does not request a turn, so it delays no other.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools

from p2prl.clock import Clock
from p2prl.swarm.relay.uplink_meter import TokenBucket

SLICE_BYTES = 16 * 1024
"""Bytes written at once: 25 ms of a 5 Mbit/s uplink, the longest a control message waits."""


class Pacer:
    """Shares one uplink among frames, on one event loop."""

    def __init__(self, clock: Clock, rate_bytes_s: float) -> None:
        """A rate of 0 means no cap."""
        self._clock = clock
        self._bucket = TokenBucket(rate_bytes_s, clock.now())
        self._tickets = itertools.count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._timer: asyncio.TimerHandle | None = None

    @property
    def rate_bytes_s(self) -> float:
        """The cap; 0 for none."""
        return self._bucket.rate_bytes_s

    def set_rate(self, rate_bytes_s: float) -> None:
        """Change the cap."""
        self._bucket = TokenBucket(rate_bytes_s, self._clock.now())
        self._serve()

    def ticket(self) -> int:
        """A place in the queue, for one frame."""
        return next(self._tickets)

    def charge(self, size_bytes: int) -> None:
        """Count a control message: it never waits, and chunks wait for it."""
        self._bucket.take(size_bytes, self._clock.now())

    async def turn(self, ticket: int, size_bytes: int) -> None:
        """Wait until `size_bytes` of the frame with this ticket may leave."""
        if not self._waiting and self._bucket.wait_s(self._clock.now()) <= 0:
            self._bucket.take(size_bytes, self._clock.now())
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (ticket, size_bytes, turn))
        self._serve()
        await turn

    def _serve(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            wait_s = self._bucket.wait_s(self._clock.now())
            if wait_s > 0:
                self._timer = asyncio.get_running_loop().call_later(wait_s, self._serve)
                return
            _, size_bytes, turn = heapq.heappop(self._waiting)
            if not turn.done():  # it is done when it was cancelled meanwhile
                self._bucket.take(size_bytes, self._clock.now())
                turn.set_result(None)
