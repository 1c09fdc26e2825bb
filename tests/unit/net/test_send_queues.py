"""Queues of outgoing frames: what is on its way at once, in which order, and what a failure takes along."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from p2prl.errors import TransportError
from p2prl.net.ports import Transport
from p2prl.net.process.send_queues import (
    CONTROL_IN_FLIGHT_BYTES,
    IN_FLIGHT_BYTES,
    MAX_QUEUED_BYTES,
    MAX_WAITING_BYTES,
    SendQueues,
)
from p2prl.protocol.identity import PeerId
from p2prl.swarm.node import Node

A, B = PeerId("A"), PeerId("B")


class Far:
    """A transport whose peers acknowledge a frame only when told to."""

    def __init__(self) -> None:
        self.waiting: list[tuple[PeerId, bytes, asyncio.Future[None]]] = []

    async def send(self, peer: PeerId, frame: bytes, *, timeout_s: float) -> None:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append((peer, frame, answer))
        await answer

    def acknowledge(self) -> None:
        self.waiting.pop(0)[2].set_result(None)

    def fail(self, peer: PeerId) -> None:
        for entry in [entry for entry in self.waiting if entry[0] == peer]:
            entry[2].set_exception(TransportError("gone"))
            self.waiting.remove(entry)


class Sink:
    """The node: counts finished uploads."""

    def __init__(self) -> None:
        self.done: list[PeerId] = []

    def upload_done(self, peer: PeerId, delivered: bool) -> None:
        self.done.append(peer)


async def warm(far: Far, sink: Sink, queues: SendQueues) -> None:
    """One chunk to A goes through."""
    queues.add(A, b"first", bulk=True)
    await settle()
    far.acknowledge()
    await settle()
    sink.done.clear()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def queues_over(far: Far, sink: Sink, lost: list[PeerId]) -> SendQueues:
    def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work)

    return SendQueues(
        cast(Node, sink), cast(Transport, far), None, spawn=spawn, on_lost=lost.append, on_chunk_done=lambda: None
    )


@pytest.mark.parametrize(("bulk", "window"), [(True, IN_FLIGHT_BYTES), (False, CONTROL_IN_FLIGHT_BYTES)])
def test_frames_follow_each_other_without_a_round_trip(bulk: bool, window: int) -> None:
    async def story() -> None:
        far, sink = Far(), Sink()
        queues = queues_over(far, sink, [])
        await warm(far, sink, queues)
        frames = [bytes([number]) * (window // 4) for number in range(6)]
        for frame in frames:
            queues.add(A, frame, bulk=bulk)
        queues.add(A, b"other", bulk=not bulk)
        await settle()
        other = next(entry for entry in far.waiting if entry[1] == b"other")
        far.waiting.remove(other)
        assert [frame for _, frame, _ in far.waiting] == frames[:4], "no more than fit, in order"
        far.acknowledge()
        await settle()
        assert sink.done == [A] * bulk
        assert [frame for _, frame, _ in far.waiting] == frames[1:5]
        while far.waiting:
            far.acknowledge()
            await settle()
        assert sink.done == [A] * (6 * bulk)

    asyncio.run(story())


def test_control_frames_that_fail_lose_their_peer_once_with_the_frames_behind_them() -> None:
    async def story() -> None:
        far, sink, lost = Far(), Sink(), list[PeerId]()
        queues = queues_over(far, sink, lost)
        for _ in range(6):
            queues.add(A, bytes(CONTROL_IN_FLIGHT_BYTES // 4), bulk=False)
        queues.add(B, b"other", bulk=False)
        await settle()
        assert len(far.waiting) == 5
        far.waiting.pop(1)[2].set_exception(TransportError("gone"))
        await settle()
        assert not lost, "others are still under way on the stream that broke"
        far.fail(A)
        await settle()
        assert lost == [A]
        assert [frame for _, frame, _ in far.waiting] == [b"other"]
        queues.add(A, b"again", bulk=False)
        await settle()
        assert [frame for _, frame, _ in far.waiting] == [b"other", b"again"]

    asyncio.run(story())


def test_a_frame_larger_than_the_window_goes_alone() -> None:
    async def story() -> None:
        far, sink = Far(), Sink()
        queues = queues_over(far, sink, [])
        await warm(far, sink, queues)
        for _ in range(2):
            queues.add(A, bytes(IN_FLIGHT_BYTES + 1), bulk=True)
        await settle()
        assert len(far.waiting) == 1
        far.acknowledge()
        await settle()
        assert len(far.waiting) == 1

    asyncio.run(story())


def test_a_failure_takes_the_chunks_behind_it_along_and_no_other_peer() -> None:
    async def story() -> None:
        far, sink, lost = Far(), Sink(), list[PeerId]()
        queues = queues_over(far, sink, lost)
        await warm(far, sink, queues)
        for _ in range(7):
            queues.add(A, bytes(IN_FLIGHT_BYTES // 2), bulk=True)
        await settle()
        assert len(far.waiting) == 2
        far.fail(A)
        await settle()
        assert sink.done == [A] * 7, "each is reported once"
        assert not far.waiting
        for word in (b"again", b"later"):
            queues.add(A, word, bulk=True)
        queues.add(B, b"other", bulk=True)
        await settle()
        assert [frame for _, frame, _ in far.waiting] == [b"again", b"other"], "A first has to show that it is back"
        assert not lost, "a chunk that fails is no dead link"

    asyncio.run(story())


def test_who_takes_no_frames_is_lost_before_they_fill_the_memory() -> None:
    async def story() -> None:
        far, sink, lost = Far(), Sink(), list[PeerId]()
        queues = queues_over(far, sink, lost)
        added = 0
        while not lost and added < 2 * MAX_QUEUED_BYTES:
            queues.add(A, bytes(CONTROL_IN_FLIGHT_BYTES), bulk=False)
            added += CONTROL_IN_FLIGHT_BYTES
        assert lost == [A]
        assert added <= MAX_QUEUED_BYTES + CONTROL_IN_FLIGHT_BYTES
        assert queues.waiting_bytes == 0, "what waited behind the frame under way is dropped"
        await settle()
        far.fail(A)
        await settle()
        queues.add(A, b"again", bulk=False)
        await settle()
        assert [frame for _, frame, _ in far.waiting] == [b"again"]

    asyncio.run(story())


def test_many_that_take_no_frames_fill_a_bounded_memory_and_leave_others_theirs() -> None:
    async def story() -> None:
        far, sink, lost = Far(), Sink(), list[PeerId]()
        queues = queues_over(far, sink, lost)
        queues.add(B, bytes(CONTROL_IN_FLIGHT_BYTES), bulk=False)
        most = 0
        for turn in range(12):
            for number in range(64):
                queues.add(PeerId(f"key {number}"), bytes(CONTROL_IN_FLIGHT_BYTES), bulk=False)
                most = max(most, queues.waiting_bytes)
            assert B not in lost, turn
        assert MAX_WAITING_BYTES // 2 < most <= MAX_WAITING_BYTES
        await settle()
        far.acknowledge()
        await settle()
        while far.waiting:
            far.acknowledge()
            await settle()
        assert queues.waiting_bytes == 0

    asyncio.run(story())
