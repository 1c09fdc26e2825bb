"""Incoming frame streams: shared among peers, each frame delivered once and acknowledged."""

from __future__ import annotations

import asyncio
import logging

from p2prl.errors import RemoteProtocolError
from p2prl.net.ports import PeerGuard, Receiver
from p2prl.net.transports import framing, streams
from p2prl.net.transports.stream_table import StreamId, StreamTable
from p2prl.protocol.identity import PeerId
from p2prl.swarm.token_buckets import KeyedBuckets, Rate

logger = logging.getLogger(__name__)

DROPS = Rate(per_s=0.25, burst=16.0)
"""Streams of one peer that may end without a frame, or within one. A link that breaks costs two or three."""

_PEERS = 4_096
"""Peers whose dropped streams are counted."""


class NoGuard:
    """Treats all peers alike, as linked ones."""

    def note_address(self, peer: PeerId, address: str) -> None:
        """Ignore it."""

    def is_banned(self, peer: PeerId) -> bool:  # noqa: ARG002 - the port's
        """Nobody is."""
        return False

    def importance(self, peer: PeerId) -> int:  # noqa: ARG002 - the port's
        """That of a linked newcomer."""
        return 1

    def fault(self, peer: PeerId, reason: str) -> None:
        """Ignore it: the stream is dropped anyway."""


class InboundStreams:
    """The streams that peers have opened to us."""

    def __init__(self, guard: PeerGuard | None = None, *, max_links: int = 1_024) -> None:
        self.receiver: Receiver | None = None
        """Gets every frame. Until it is set, frames are not acknowledged."""
        self._guard: PeerGuard = guard or NoGuard()
        self._table = StreamTable(max_streams=framing.max_streams(max_links))
        self._writers: dict[StreamId, asyncio.StreamWriter] = {}
        self._drops = KeyedBuckets(DROPS, capacity=_PEERS)

    @property
    def held_bytes(self) -> int:
        """Bytes of unfinished frames in memory."""
        return self._table.held_bytes

    async def accept(
        self, peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str = ""
    ) -> None:
        """Serve one stream of a peer, which comes from `address`, until it ends. Raises `EOFError` or `OSError`."""
        if self._guard.is_banned(peer):
            return
        if address:
            self._guard.note_address(peer, address)
        stream, dropped = self._table.open(peer, address, self._guard.importance(peer), self._now())
        self._writers[stream] = writer
        self._abort(dropped)
        watch = _Watch(self, stream, peer)
        try:
            if stream not in dropped:
                await streams.serve(reader, writer, lambda frame: self._deliver(peer, frame), watch)
        except RemoteProtocolError as error:
            logger.debug("dropped a stream of peer %s: %s", peer, error)
            self._guard.fault(peer, str(error))
        except (OSError, EOFError):
            if (watch.is_within_frame or not watch.frames) and not self._drops.take(peer, self._now()):
                self._guard.fault(peer, "opens streams and drops them")
            raise
        finally:
            self._table.close(stream)
            self._writers.pop(stream, None)
            if self._guard.is_banned(peer):
                self._abort(self._table.streams_of(peer))

    def began(self, stream: StreamId, length: int) -> None:
        """A frame has been announced on a stream."""
        self._table.began(stream, length, self._now())

    def received(self, stream: StreamId, size_bytes: int) -> None:
        """Bytes of an unfinished frame have arrived. Raises `EOFError` when there is no memory for them."""
        dropped = self._table.received(stream, size_bytes)
        self._abort(dropped)
        if stream in dropped:
            raise EOFError("too many unfinished frames")

    def finished(self, stream: StreamId, peer: PeerId) -> None:
        """A frame is complete."""
        self._table.finished(stream, self._guard.importance(peer), self._now())

    def _deliver(self, peer: PeerId, frame: bytes) -> None:
        if self.receiver is None:
            raise EOFError("no receiver yet")  # ends the stream: the sender's frame fails and is tried again
        # In a separate turn of the loop, so that an error in the receiver is reported by the loop and does not end this
        # stream.
        asyncio.get_running_loop().call_soon(self.receiver, peer, frame)

    def _abort(self, dropped: list[StreamId]) -> None:
        for stream in dropped:
            writer = self._writers.get(stream)
            if writer is not None:
                writer.transport.abort()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


class _Watch:
    """Reports the frames of one stream."""

    def __init__(self, owner: InboundStreams, stream: StreamId, peer: PeerId) -> None:
        self._owner = owner
        self._stream = stream
        self._peer = peer
        self.frames = 0
        self.is_within_frame = False

    def began(self, length: int) -> None:
        self.is_within_frame = True
        self._owner.began(self._stream, length)

    def received(self, size_bytes: int) -> None:
        self._owner.received(self._stream, size_bytes)

    def finished(self) -> None:
        self.frames += 1
        self.is_within_frame = False
        self._owner.finished(self._stream, self._peer)
