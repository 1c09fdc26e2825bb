"""The wire of frames between two peers: one libp2p stream per direction and size class, kept open. Pure.

The opener writes `uint32 length (little-endian) ‖ frame`, repeated; the acceptor answers each frame, in order, with the
byte `ACK` once its process holds the whole frame. Either side may close at any time; what was not answered counts as
not sent. A kept-open stream costs a fraction of the daemon's unary calls, which negotiate a new stream for every
call, and any libp2p implementation can speak it.
"""

from __future__ import annotations

import struct

from p2prl.errors import LocalProtocolError, RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.kinds import Kind

FRAME_PROTOCOL = "/p2prl/frames/1"
"""The libp2p protocol id of a frame stream; its number changes when anything in this file changes."""

ACK = b"\x06"
HEADER_BYTES = 4

MAX_INBOUND_STREAMS_PER_PEER = 4
"""A peer needs two (control and bulk); two more cover its reconnecting before we notice the old ones died."""

MAX_INBOUND_STREAMS = 512
"""All peers together: bounds file descriptors, and memory to one frame each."""

_HEADER = struct.Struct("<I")
_CHUNK = bytes((Kind.CHUNK,))
"""A chunk travels alone in its frame, which so begins with its kind."""


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


def is_bulk(frame: bytes) -> bool:
    """Whether the frame takes the bulk stream, so that control frames never queue behind a weight chunk.

    Chunks of small models are small: what a frame begins with decides, and its size where that says nothing.
    """
    return frame[:1] == _CHUNK or len(frame) > limits.MAX_CONTROL_FRAME_BYTES
