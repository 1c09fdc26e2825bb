"""Shares of the incoming streams and of the memory for unfinished frames, by importance, subnet and peer. Pure.

Anybody who can dial this node can open streams and begin frames. Two streams of each linked peer are kept as its link
is; all others share what is left: when there are too many, the subnet with most of them loses the one idle for
longest. Bytes of unfinished frames are counted as they arrive. When there are too many, the peer that holds most of
them loses its stream; peers without a link have a share of their own.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import NewType

from p2prl.errors import RemoteProtocolError
from p2prl.net.transports import framing
from p2prl.protocol import limits
from p2prl.protocol.identity import PeerId
from p2prl.swarm.peers.subnets import Subnet, subnet_of

STRANGERS_SHARE = 1 / 8
"""Share of the memory for unfinished frames that peers without a link keep when it is short: a thousand hellos."""

StreamId = NewType("StreamId", int)
"""Number of a stream, in the order in which they were opened."""


@dataclass(slots=True)
class _Stream:
    peer: PeerId
    subnet: Subnet
    importance: int
    active_at: float
    """When it was opened, or its last frame was complete."""
    held_bytes: int = 0
    """Of an unfinished frame."""
    frame_since: float = math.inf


class StreamTable:
    """The open incoming streams of one node."""

    def __init__(self, *, max_streams: int, max_held_bytes: int = framing.MAX_HELD_BYTES) -> None:
        self._max_streams = max_streams
        self._max_held_bytes = max_held_bytes
        self._streams: dict[StreamId, _Stream] = {}
        self._of_peer: defaultdict[PeerId, list[StreamId]] = defaultdict(list)
        self._held_by: Counter[PeerId] = Counter()
        self._next = 0
        self.held_bytes = 0
        """Bytes of unfinished frames over all peers."""

    def __len__(self) -> int:
        return len(self._streams)

    def streams_of(self, peer: PeerId) -> list[StreamId]:
        """The open streams of a peer, the oldest first."""
        return list(self._of_peer.get(peer, ()))

    def open(self, peer: PeerId, address: str, importance: int, now: float) -> tuple[StreamId, list[StreamId]]:
        """(the new stream, the streams to drop for it); it may be among them itself."""
        stream = StreamId(self._next)
        self._next += 1
        dropped = []
        own = self._of_peer[peer]
        if len(own) >= framing.MAX_INBOUND_STREAMS_PER_PEER:
            dropped.append(own[0])  # left behind by a reconnect
            self.close(own[0])
        own = self._of_peer[peer]
        own.append(stream)
        self._streams[stream] = _Stream(peer, subnet_of(address), importance, now)
        if len(self._streams) > self._max_streams:
            victim = self._most_dispensable()
            dropped.append(victim)
            self.close(victim)
        return stream, dropped

    def began(self, stream: StreamId, length: int, now: float) -> None:
        """A frame has been announced. Raises `RemoteProtocolError` for one that its sender may not send yet."""
        entry = self._streams.get(stream)
        if entry is None:
            return
        entry.frame_since = now
        # Rank 0 is also a linked peer's third stream: nobody needs that one for chunks.
        if self._rank(stream) == 0 and length > limits.MAX_CONTROL_FRAME_BYTES:
            raise RemoteProtocolError(f"frame of {length} bytes from a peer without a link")

    def received(self, stream: StreamId, size_bytes: int) -> list[StreamId]:
        """Count bytes of an unfinished frame; returns the streams to drop for want of memory."""
        entry = self._streams.get(stream)
        if entry is None:
            return []
        entry.held_bytes += size_bytes
        self._held_by[entry.peer] += size_bytes
        self.held_bytes += size_bytes
        dropped = []
        if self._held_by[entry.peer] > framing.MAX_HELD_BYTES_PER_PEER:
            dropped.append(stream)
            self.close(stream)
        while self.held_bytes > self._max_held_bytes:
            victim = self._largest_holder()
            dropped.append(victim)
            self.close(victim)
        return dropped

    def finished(self, stream: StreamId, importance: int, now: float) -> None:
        """The frame is complete and handed on; its sender has this importance by now."""
        entry = self._streams.get(stream)
        if entry is not None:
            self._release(entry)
            entry.frame_since, entry.active_at = math.inf, now
            entry.importance = importance

    def close(self, stream: StreamId) -> None:
        """The stream has ended. May be called again."""
        entry = self._streams.pop(stream, None)
        if entry is None:
            return
        self._release(entry)
        own = self._of_peer[entry.peer]
        own.remove(stream)
        if not own:
            del self._of_peer[entry.peer]

    def _release(self, entry: _Stream) -> None:
        self.held_bytes -= entry.held_bytes
        self._held_by[entry.peer] -= entry.held_bytes
        if not self._held_by[entry.peer]:
            del self._held_by[entry.peer]
        entry.held_bytes = 0

    def _rank(self, stream: StreamId) -> int:
        """A peer's newest two streams count as its link does, others as a stranger's."""
        entry = self._streams[stream]
        return entry.importance if stream in self._of_peer[entry.peer][-framing.STREAMS_PER_LINK :] else 0

    def _most_dispensable(self) -> StreamId:
        ranks = {stream: self._rank(stream) for stream in self._streams}
        least = min(ranks.values())
        shared = {stream: entry for stream, entry in self._streams.items() if ranks[stream] == least}
        in_subnet = Counter(entry.subnet for entry in shared.values())
        of_peer = Counter(entry.peer for entry in shared.values())
        return min(
            shared,
            key=lambda s: (-in_subnet[shared[s].subnet], -of_peer[shared[s].peer], shared[s].active_at, s),
        )

    def _largest_holder(self) -> StreamId:
        """A stream of the peer that holds most: a stranger's if strangers hold more than their share, else a link's."""
        holding = {stream: entry for stream, entry in self._streams.items() if entry.held_bytes}
        strangers = [stream for stream in holding if not self._rank(stream)]
        is_over = sum(holding[stream].held_bytes for stream in strangers) > STRANGERS_SHARE * self._max_held_bytes
        pool = strangers if is_over or len(strangers) == len(holding) else set(holding) - set(strangers)
        return min(pool, key=lambda s: (-self._held_by[holding[s].peer], holding[s].frame_since, s))
