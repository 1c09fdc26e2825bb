"""Framing of messages on a stream between two peers. Pure.

A peer opens one stream per direction and size class and keeps it open. The opener writes `uint32 length
(little-endian) ‖ frame`, repeated. The acceptor answers each frame, in order, with the byte `ACK` once its process
holds the complete frame. Either side may close at any time; a frame without an answer counts as not sent. A kept-open
stream costs a fraction of the daemon's unary calls, which negotiate a new stream for every call, and any libp2p
implementation can use it.
"""

from __future__ import annotations

import struct

from p2prl import __version__
from p2prl.errors import LocalProtocolError, RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.kinds import Kind

FRAME_PROTOCOL = "/p2prl/frames/1"
"""The libp2p protocol id of a frame stream; its number changes when anything in this file changes."""

VERSION_PROTOCOL = f"/p2prl/version/{__version__}"
"""Names this software and its version among the protocols that identify tells: the daemon's agent is its own, and
cannot be told another. A stream on it is closed at once."""

ACK = b"\x06"
HEADER_BYTES = 4

MAX_INBOUND_STREAMS_PER_PEER = 4
"""A peer needs two (control and bulk); two more cover a reconnect before we notice that the old ones died."""

STREAMS_PER_LINK = 2
"""Control and bulk, in each direction."""

SPARE_STREAMS = 256
"""Streams beyond those of all links: for peers that ask for a link, and for reconnects."""

CONTROL_FRAME_S = 20.0
"""Longest time from the first byte of a control frame to its last: 256 KiB at 100 kbit/s. Its sender gives up after
10 s."""

BULK_FRAME_S = 130.0
"""The same for a bulk frame: its sender gives up after 120 s, and may send others first."""

MAX_HELD_BYTES = 128 * 1024 * 1024
"""Bytes of unfinished frames over all peers. Thirty chunks of the largest size, or the parts of a thousand groups."""

MAX_HELD_BYTES_PER_PEER = 2 * limits.MAX_FRAME_BYTES
"""The same for one peer: a chunk, and one behind it on a stream that replaces a broken one."""

_HEADER = struct.Struct("<I")
_CHUNK = bytes((Kind.CHUNK,))
"""A chunk is alone in its frame, so the frame begins with its kind."""


def header(frame: bytes) -> bytes:
    """The four bytes that go before `frame`. Raises `LocalProtocolError` for a frame no peer would accept."""
    if not 0 < len(frame) <= limits.MAX_FRAME_BYTES:
        raise LocalProtocolError(f"a frame has 1 to {limits.MAX_FRAME_BYTES} bytes, got {len(frame)}")
    return _HEADER.pack(len(frame))


def frame_length(received: bytes) -> int:
    """The length a received header announces, bytes. Raises `RemoteProtocolError` before anything is allocated."""
    length: int = _HEADER.unpack(received)[0]
    if not 0 < length <= limits.MAX_FRAME_BYTES:
        raise RemoteProtocolError(f"frame of {length} bytes; the limit is {limits.MAX_FRAME_BYTES}")
    return length


def max_streams(max_links: int) -> int:
    """Streams of one direction over all peers, for a node of `max_links`: bounds file descriptors."""
    return STREAMS_PER_LINK * max_links + SPARE_STREAMS


def frame_deadline_s(length: int) -> float:
    """Time in which a frame of this length must be complete."""
    return CONTROL_FRAME_S if length <= limits.MAX_CONTROL_FRAME_BYTES else BULK_FRAME_S


def is_bulk(frame: bytes) -> bool:
    """Whether the frame goes on the bulk stream, so that control frames never queue behind a weight chunk.

    Every chunk is bulk, also the small chunks of a small model, and so is any other frame above the control limit.
    """
    return frame[:1] == _CHUNK or len(frame) > limits.MAX_CONTROL_FRAME_BYTES
