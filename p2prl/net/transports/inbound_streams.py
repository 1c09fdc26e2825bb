"""Incoming frame streams: bounded per peer and in total, each frame delivered once and acknowledged."""

from __future__ import annotations

import asyncio
import logging

from p2prl.errors import RemoteProtocolError
from p2prl.net.ports import Receiver
from p2prl.net.transports import framing, streams
from p2prl.protocol.identity import PeerId

logger = logging.getLogger(__name__)


class InboundStreams:
    """The streams that peers have opened to us."""

    def __init__(self) -> None:
        self.receiver: Receiver | None = None
        """Gets every frame. Until it is set, frames are not acknowledged."""
        self._open: dict[PeerId, list[asyncio.StreamWriter]] = {}

    async def accept(self, peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one stream of a peer until it ends. Raises `EOFError` or `OSError` then."""
        open_streams = self._open.setdefault(peer, [])
        if sum(map(len, self._open.values())) >= framing.MAX_INBOUND_STREAMS:
            logger.debug("refused a stream of %s: too many streams", peer)
            return
        if len(open_streams) >= framing.MAX_INBOUND_STREAMS_PER_PEER:
            open_streams.pop(0).transport.abort()
        open_streams.append(writer)
        try:
            await streams.serve(reader, writer, lambda frame: self._deliver(peer, frame))
        except RemoteProtocolError as error:
            logger.warning("dropped a stream of peer %s: %s", peer, error)
        finally:
            if writer in open_streams:
                open_streams.remove(writer)
            if not open_streams and self._open.get(peer) is open_streams:
                del self._open[peer]

    def _deliver(self, peer: PeerId, frame: bytes) -> None:
        if self.receiver is None:
            raise EOFError("no receiver yet")  # ends the stream: the sender's frame fails and is tried again
        # In a separate turn of the loop, so that an error in the receiver is reported by the loop and does not end this
        # stream.
        asyncio.get_running_loop().call_soon(self.receiver, peer, frame)
