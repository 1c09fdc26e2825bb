"""Frames: link messages packed for one send of the transport.

A frame is `kind byte ‖ uint32 length ‖ body`, repeated. Several small messages to one peer share a frame, because one
transport call costs far more than one message (milliseconds of CPU against microseconds). A weight chunk is sent alone,
as raw bytes after its header, and is never copied through msgpack.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from p2prl.errors import LocalProtocolError, RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.kinds import Kind
from p2prl.protocol.link_messages import LINK_MESSAGES, Chunk
from p2prl.protocol.wire_codec import Wire, decode, encode

_HEADER = struct.Struct("<BI")
_KIND_OF = {body: kind for kind, body in LINK_MESSAGES.items()}
_NUMBERS = frozenset(int(kind) for kind in LINK_MESSAGES)


def pack(message: Wire) -> bytes:
    """Encode one link message with its header."""
    kind = _KIND_OF.get(type(message))
    if kind is None:
        raise LocalProtocolError(f"{type(message).__name__} is not a link message")
    body = message.data if isinstance(message, Chunk) else encode(message)
    return _HEADER.pack(kind, len(body)) + body


def join(packed: Iterable[bytes]) -> Iterator[bytes]:
    """Join packed messages, in order, into frames within the control-frame limit. A larger message travels alone."""
    batch: list[bytes] = []
    size = 0
    for message in packed:
        full = size + len(message) > limits.MAX_CONTROL_FRAME_BYTES or len(batch) == limits.MAX_MESSAGES_PER_FRAME
        if batch and full:
            yield b"".join(batch)
            batch, size = [], 0
        batch.append(message)
        size += len(message)
    if batch:
        yield b"".join(batch)


def split(frame: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (kind number, packed message) for a well-formed frame of our own, without decoding it."""
    offset = 0
    while offset < len(frame):
        number, size = _HEADER.unpack_from(frame, offset)
        yield number, frame[offset : offset + _HEADER.size + size]
        offset += _HEADER.size + size


def unpack(frame: bytes) -> Iterator[Wire]:
    """Yield the messages of a frame, in order. Raise `RemoteProtocolError` at the first malformed one."""
    if len(frame) > limits.MAX_FRAME_BYTES:
        raise RemoteProtocolError(f"frame of {len(frame)} bytes exceeds {limits.MAX_FRAME_BYTES}")
    offset = 0
    for _ in range(limits.MAX_MESSAGES_PER_FRAME):
        if offset == len(frame):
            return
        if len(frame) - offset < _HEADER.size:
            raise RemoteProtocolError("frame: truncated header")
        number, size = _HEADER.unpack_from(frame, offset)
        offset += _HEADER.size
        if number not in _NUMBERS:
            raise RemoteProtocolError(f"frame: unknown message kind {number}")
        if size > len(frame) - offset:
            raise RemoteProtocolError("frame: truncated message")
        body = memoryview(frame)[offset : offset + size]
        offset += size
        if number == Kind.CHUNK:
            if size > limits.MAX_CHUNK_BYTES:
                raise RemoteProtocolError(f"chunk of {size} bytes exceeds {limits.MAX_CHUNK_BYTES}")
            yield Chunk(bytes(body))
        else:
            yield decode(body, LINK_MESSAGES[Kind(number)], limit_bytes=limits.MAX_CONTROL_FRAME_BYTES)
    if offset != len(frame):
        raise RemoteProtocolError(f"frame: more than {limits.MAX_MESSAGES_PER_FRAME} messages")
