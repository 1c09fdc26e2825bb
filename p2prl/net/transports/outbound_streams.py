"""Outgoing frame streams: one per peer and size class, opened on demand, the least recently used one closed first."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from p2prl.errors import TransportError
from p2prl.net.pacing import Pacer
from p2prl.net.transports import framing
from p2prl.net.transports.streams import FrameStream
from p2prl.protocol.identity import PeerId

_MAX_STREAMS = 128
"""Open streams: each holds a file descriptor here and one in the daemon."""

OpenStream = Callable[[PeerId], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class OutboundStreams:
    """The streams on which this peer sends. Build it on the event loop."""

    def __init__(self, open_stream: OpenStream, *, pacer: Pacer | None = None) -> None:
        """A pacer caps the upload rate of chunks."""
        self._open_stream = open_stream
        self._pacer = pacer
        self._streams: OrderedDict[tuple[PeerId, bool], FrameStream] = OrderedDict()

    async def send(self, peer: PeerId, frame: bytes, *, timeout_s: float) -> None:
        """See `Transport.send`."""
        stream = self._stream(peer, bulk=framing.is_bulk(frame))
        try:
            async with asyncio.timeout(timeout_s):
                await stream.send(frame)
        except TimeoutError as error:
            raise TransportError(
                f"peer {peer} did not accept a frame of {len(frame)} bytes in {timeout_s:g} s"
            ) from error
        except TransportError as error:
            raise TransportError(f"peer {peer} is out of reach: {error}") from error

    def close(self, why: str = "the connection ended") -> None:
        """Close every stream; frames without an acknowledgement fail."""
        for stream in self._streams.values():
            stream.close(why)

    def _stream(self, peer: PeerId, *, bulk: bool) -> FrameStream:
        stream = self._streams.get((peer, bulk))
        if stream is None or stream.closed:
            stream = FrameStream(lambda: self._open_stream(peer), pacer=self._pacer, bulk=bulk)
            self._streams[peer, bulk] = stream
        self._streams.move_to_end((peer, bulk))
        if len(self._streams) > _MAX_STREAMS:
            _, oldest = self._streams.popitem(last=False)
            oldest.close("the stream was closed to make room for busier ones")
        return stream
