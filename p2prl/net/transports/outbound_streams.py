"""Outgoing frame streams: one per peer and size class, opened on demand, the one idle for longest closed first."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from p2prl.errors import TransportError
from p2prl.net.pacing import Pacer
from p2prl.net.transports import framing
from p2prl.net.transports.streams import FrameStream
from p2prl.protocol.identity import PeerId

OpenStream = Callable[[PeerId], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class OutboundStreams:
    """The streams on which this peer sends. Build it on the event loop."""

    def __init__(self, open_stream: OpenStream, *, max_links: int = 1_024, pacer: Pacer | None = None) -> None:
        """There are streams for `max_links` peers at once. A pacer caps the upload rate of chunks."""
        self._most = framing.max_streams(max_links)
        self._open_stream = open_stream
        self._pacer = pacer
        self._streams: OrderedDict[tuple[PeerId, bool], FrameStream] = OrderedDict()

    async def send(self, peer: PeerId, frame: bytes, *, timeout_s: float) -> None:
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
        if len(self._streams) > self._most:
            self._close_one(keep=(peer, bulk))
        return stream

    def _close_one(self, keep: tuple[PeerId, bool]) -> None:
        """Close the stream unused for longest; one with a frame on its way only if all have one."""
        others = [key for key in self._streams if key != keep]
        idle = (key for key in others if self._streams[key].closed or self._streams[key].idle)
        key = next(idle, others[0])
        self._streams.pop(key).close("the stream was closed to make room for busier ones")
