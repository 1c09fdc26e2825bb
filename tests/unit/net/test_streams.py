"""Frame streams and the serving loop over a pipe in memory: order, acknowledgements, limits, failures."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable

import pytest

from p2prl.errors import LocalProtocolError, RemoteProtocolError, TransportError
from p2prl.net.transports import framing, streams
from p2prl.protocol import frames, limits
from p2prl.protocol.link_messages import Chunk, ChunkRequest


class PipeTransport(asyncio.Transport):
    """The writing end of a pipe in memory."""

    def __init__(self, far_end: asyncio.StreamReader) -> None:
        super().__init__()
        self._far_end = far_end
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview[int]) -> None:
        if not self.aborted:
            self._far_end.feed_data(bytes(data))

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        if not self.aborted:
            self.aborted = True
            self._far_end.feed_eof()

    def close(self) -> None:
        self.abort()


_ends: list[asyncio.StreamWriter] = []
"""Every pipe of the running scenario, to close when it ends."""


def pipe() -> tuple[asyncio.StreamReader, asyncio.StreamWriter, PipeTransport]:
    reader = asyncio.StreamReader()
    transport = PipeTransport(reader)
    loop = asyncio.get_running_loop()
    protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader(), loop=loop)
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    _ends.append(writer)
    return reader, writer, transport


class Link:
    """Both directions between a stream and the acceptor's side, played by the test."""

    def __init__(self) -> None:
        self.acceptor_reads, lane_writes, self.lane_end = pipe()
        lane_reads, self.acceptor_writes, self.acceptor_end = pipe()
        self.opened = 0
        self._lane_side = (lane_reads, lane_writes)

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.opened += 1
        return self._lane_side


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        try:
            async with asyncio.timeout(10):
                await scenario()
        finally:
            for end in _ends:
                end.transport.abort()
            _ends.clear()

    asyncio.run(bounded())


def test_frames_arrive_complete_and_in_order_over_one_stream() -> None:
    async def scenario() -> None:
        link, got = Link(), list[bytes]()
        serving = asyncio.create_task(streams.serve(link.acceptor_reads, link.acceptor_writes, got.append))
        stream = streams.FrameStream(link.open)
        frames = [bytes([i % 251]) * size for i, size in enumerate([1, 7, 65_536, 3, 300_000])]
        await asyncio.gather(*map(stream.send, frames))
        assert got == frames
        assert link.opened == 1
        stream.close()
        with pytest.raises(EOFError):
            await serving

    run(scenario)


def test_send_waits_for_the_acknowledgement_of_its_own_frame() -> None:
    async def scenario() -> None:
        link = Link()
        stream = streams.FrameStream(link.open)
        first, second = asyncio.create_task(stream.send(b"a")), asyncio.create_task(stream.send(b"b"))
        assert await link.acceptor_reads.readexactly(10) == b"\x01\0\0\0a\x01\0\0\0b"
        assert not first.done()
        link.acceptor_writes.write(framing.ACK)
        await first
        assert not second.done()
        link.acceptor_writes.write(framing.ACK)
        await second
        stream.close()

    run(scenario)


@pytest.mark.parametrize("ending", ["end", "garbage", "too many answers"])
def test_a_broken_connection_fails_every_unacknowledged_frame(ending: str) -> None:
    async def scenario() -> None:
        link = Link()
        stream = streams.FrameStream(link.open)
        sends = [asyncio.create_task(stream.send(b"x")) for _ in range(3)]
        await link.acceptor_reads.readexactly(15)
        if ending == "end":
            link.acceptor_end.abort()
        else:
            link.acceptor_writes.write(b"?" if ending == "garbage" else framing.ACK * 4)
        for result in await asyncio.gather(*sends, return_exceptions=True):
            assert isinstance(result, TransportError)
        assert stream.closed
        assert link.lane_end.aborted
        with pytest.raises(TransportError):
            await stream.send(b"late")

    run(scenario)


def test_a_cancelled_send_closes_only_a_stream_without_progress() -> None:
    async def scenario() -> None:
        link = Link()
        stream = streams.FrameStream(link.open)
        slow, given_up = asyncio.create_task(stream.send(b"a")), asyncio.create_task(stream.send(b"b"))
        await link.acceptor_reads.readexactly(10)
        link.acceptor_writes.write(framing.ACK)
        await slow
        given_up.cancel()
        await asyncio.wait([given_up])
        assert not stream.closed
        stuck = asyncio.create_task(stream.send(b"c"))
        await link.acceptor_reads.readexactly(5)
        stuck.cancel()
        await asyncio.wait([stuck])
        assert stream.closed

    run(scenario)


def test_a_failed_dial_fails_every_waiting_send_at_once() -> None:
    async def scenario() -> None:
        dials = 0

        async def refuse() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            nonlocal dials
            dials += 1
            await asyncio.sleep(0)
            raise TransportError("no route")

        stream = streams.FrameStream(refuse)
        results = await asyncio.gather(*(stream.send(b"x") for _ in range(5)), return_exceptions=True)
        assert all(isinstance(result, TransportError) for result in results)
        assert dials == 1

    run(scenario)


@pytest.mark.parametrize("length", [0, limits.MAX_FRAME_BYTES + 1, 0xFFFFFFFF])
def test_an_announced_length_outside_the_limits_ends_the_stream_before_it_is_read(length: int) -> None:
    async def scenario() -> None:
        link = Link()
        link.acceptor_reads.feed_data(struct.pack("<I", length))
        with pytest.raises(RemoteProtocolError):
            await streams.serve(link.acceptor_reads, link.acceptor_writes, lambda frame: None)

    run(scenario)


def test_frames_outside_the_limits_are_local_errors() -> None:
    for frame in (b"", bytes(limits.MAX_FRAME_BYTES + 1)):
        with pytest.raises(LocalProtocolError):
            framing.header(frame)
    assert framing.frame_length(framing.header(bytes(limits.MAX_FRAME_BYTES))) == limits.MAX_FRAME_BYTES
    assert not framing.is_bulk(bytes(limits.MAX_CONTROL_FRAME_BYTES))
    assert framing.is_bulk(bytes(limits.MAX_CONTROL_FRAME_BYTES + 1))
    assert framing.is_bulk(frames.pack(Chunk(bytes(32), 0, b"", b"few bytes"))), "small chunks wait for their turn too"
    assert not framing.is_bulk(frames.pack(ChunkRequest(bytes(32), 0)))
