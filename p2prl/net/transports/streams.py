"""Frames over asyncio streams: `FrameStream` sends to one peer, `serve` receives on one incoming stream.

A frame stream opens its connection on the first frame, keeps it, and closes it when idle. Frames are pipelined without
waiting for acknowledgements, so a stream uses the full bandwidth of the connection; each sender waits for its own
frame's acknowledgement. When a stream fails, only its unacknowledged frames fail.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

from p2prl.errors import TransportError
from p2prl.net.pacing import SLICE_BYTES, Pacer
from p2prl.net.transports import framing

OpenStream = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]

IDLE_S = 120.0
"""An unused stream closes after this long: it holds a file descriptor here, in the daemon and at the peer."""


_PART_BYTES = 256 * 1024
"""Bytes read at once: a control frame in one piece."""


class FrameStream:
    """The outgoing stream of one size class to one peer. Build it on the event loop; make a new one when `closed`."""

    def __init__(self, open_stream: OpenStream, *, pacer: Pacer | None = None, bulk: bool = False) -> None:
        """With a pacer, bulk frames leave at its rate and the others are charged to it."""
        self.closed = False
        self._pacer = pacer
        self._bulk = bulk
        self._open_stream = open_stream
        self._writing = asyncio.Lock()
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._unacknowledged: deque[asyncio.Future[None]] = deque()
        self._acknowledged = 0

    @property
    def idle(self) -> bool:
        """Whether no frame is being sent or waits for its acknowledgement."""
        return not self._unacknowledged and not self._writing.locked()

    async def send(self, frame: bytes) -> None:
        """Write the frame and wait for its acknowledgement. A cancelled send without progress closes the stream."""
        head = framing.header(frame)
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        before = self._acknowledged
        try:
            async with self._writing:
                if self.closed:
                    raise TransportError("the connection ended")
                writer = self._writer or await self._open()
                self._unacknowledged.append(answer)
                writer.write(head)
                if self._pacer is not None and self._bulk:
                    await self._write_paced(writer, frame, self._pacer)
                else:
                    if self._pacer is not None:
                        self._pacer.charge(len(frame))
                    writer.write(frame)
                    await writer.drain()
            await answer
        except OSError as error:
            self.close()
            raise TransportError(f"the connection broke: {error}") from error
        except asyncio.CancelledError:
            if self._writer is not None and self._acknowledged == before:
                self.close()
            raise
        finally:
            if answer.done() and not answer.cancelled():
                answer.exception()  # retrieved, even if the write failed first

    async def _write_paced(self, writer: asyncio.StreamWriter, frame: bytes, pacer: Pacer) -> None:
        ticket, view = pacer.ticket(), memoryview(frame)
        try:
            for start in range(0, len(frame), SLICE_BYTES):
                part = view[start : start + SLICE_BYTES]
                await pacer.turn(ticket, len(part))
                writer.write(part)
                await writer.drain()
        except asyncio.CancelledError:
            self.close()  # half a frame is on the stream: nothing can follow it
            raise

    def close(self, why: str = "the connection ended") -> None:
        """Drop the connection; unacknowledged frames fail with `TransportError`."""
        if self.closed:
            return
        self.closed = True
        if self._writer is not None:
            self._writer.transport.abort()
        if self._reading is not None:
            self._reading.cancel()
        while self._unacknowledged:
            answer = self._unacknowledged.popleft()
            if not answer.done():
                answer.set_exception(TransportError(why))

    async def _open(self) -> asyncio.StreamWriter:
        try:
            reader, writer = await self._open_stream()
        except BaseException:
            self.close()  # every queued sender fails too, instead of dialing again
            raise
        if self.closed:
            writer.transport.abort()
            raise TransportError("the connection ended")
        self._writer = writer
        self._reading = asyncio.create_task(self._read_answers(reader))
        return writer

    async def _read_answers(self, reader: asyncio.StreamReader) -> None:
        while True:
            try:
                async with asyncio.timeout(IDLE_S):
                    answers = await reader.read(4096)
            except TimeoutError:
                if self._unacknowledged:
                    continue
                break
            except OSError:
                break
            if answers.strip(framing.ACK) or not 0 < len(answers) <= len(self._unacknowledged):
                break  # the end of the stream, or a peer that breaks the protocol
            self._acknowledged += len(answers)
            for _ in answers:
                answer = self._unacknowledged.popleft()
                if not answer.done():
                    answer.set_result(None)
        self._reading = None
        self.close()


class FrameWatch(Protocol):
    """Told of the frames that arrive on one incoming stream. It may raise to end the stream."""

    def began(self, length: int) -> None:
        """A frame of this length has been announced."""
        ...

    def received(self, size_bytes: int) -> None:
        """This number of further bytes of it is in memory."""
        ...

    def finished(self) -> None:
        """It is complete, and no longer held here."""
        ...


class _NoWatch:
    def began(self, length: int) -> None:
        pass

    def received(self, size_bytes: int) -> None:
        pass

    def finished(self) -> None:
        pass


async def serve(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    deliver: Callable[[bytes], None],
    watch: FrameWatch | None = None,
) -> None:
    """Deliver each complete frame and acknowledge it, until the stream ends.

    Raises `RemoteProtocolError` for a length outside the limits, `EOFError` or `OSError` when the stream ends;
    `TimeoutError`, an `OSError`, for a frame that is not complete in time.
    """
    watch = watch or _NoWatch()
    while True:
        first = await reader.readexactly(1)  # an idle stream may stay
        async with asyncio.timeout(framing.CONTROL_FRAME_S):
            length = framing.frame_length(first + await reader.readexactly(framing.HEADER_BYTES - 1))
        watch.began(length)
        async with asyncio.timeout(framing.frame_deadline_s(length)):
            frame = await _read_frame(reader, length, watch)
        watch.finished()
        deliver(frame)
        writer.write(framing.ACK)
        async with asyncio.timeout(framing.CONTROL_FRAME_S):
            await writer.drain()


async def _read_frame(reader: asyncio.StreamReader, length: int, watch: FrameWatch) -> bytes:
    """The frame, taken from the stream as it arrives, so that its bytes are counted while it is unfinished."""
    frame = bytearray()
    while len(frame) < length:
        part = await reader.read(min(_PART_BYTES, length - len(frame)))
        if not part:
            raise EOFError("the stream ended within a frame")
        frame += part
        watch.received(len(part))
    return bytes(frame)
