"""Frames: link messages packed for one send of the transport.

A frame is `kind byte ‖ uint32 length ‖ body`, repeated. Several small messages to one peer share a frame, because one
transport call costs far more than one message (milliseconds of CPU against microseconds). A weight chunk is sent alone,
as `root ‖ uint32 index ‖ uint8 digests of the proof ‖ proof ‖ bytes`, and is never copied through msgpack.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from p2prl.errors import LocalProtocolError, RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.digests import DIGEST_BYTES
from p2prl.protocol.kinds import Kind
from p2prl.protocol.link_messages import LINK_MESSAGES, Chunk
from p2prl.protocol.wire_codec import Wire, decode, encode

_HEADER = struct.Struct("<BI")
_CHUNK_HEADER = struct.Struct(f"<{DIGEST_BYTES}sIB")

CHUNK_OVERHEAD_BYTES = _HEADER.size + _CHUNK_HEADER.size
"""What a chunk's frame has besides its proof and its bytes."""

_KIND_OF = {body: kind for kind, body in LINK_MESSAGES.items()}
_NUMBERS = frozenset(int(kind) for kind in LINK_MESSAGES)


def pack(message: Wire) -> bytes:
    """Encode one link message with its header."""
    kind = _KIND_OF.get(type(message))
    if kind is None:
        raise LocalProtocolError(f"{type(message).__name__} is not a link message")
    if isinstance(message, Chunk):
        proof = message.proof
        size = _CHUNK_HEADER.size + len(proof) + len(message.data)
        place = _CHUNK_HEADER.pack(message.root, message.index, len(proof) // DIGEST_BYTES)
        return b"".join((_HEADER.pack(kind, size), place, proof, message.data))
    body = encode(message)
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
            yield _chunk(body)
        else:
            yield decode(body, LINK_MESSAGES[Kind(number)], limit_bytes=limits.MAX_CONTROL_FRAME_BYTES)
    if offset != len(frame):
        raise RemoteProtocolError(f"frame: more than {limits.MAX_MESSAGES_PER_FRAME} messages")


def _chunk(body: memoryview) -> Chunk:
    if len(body) < _CHUNK_HEADER.size:
        raise RemoteProtocolError("chunk: truncated header")
    root, index, digests = _CHUNK_HEADER.unpack_from(body)
    begin = _CHUNK_HEADER.size + digests * DIGEST_BYTES
    if digests * DIGEST_BYTES > limits.MAX_PROOF_BYTES or begin > len(body):
        raise RemoteProtocolError(f"chunk: no room for a proof of {digests} digests")
    if len(body) - begin > limits.MAX_CHUNK_BYTES:
        raise RemoteProtocolError(f"chunk of {len(body) - begin} bytes exceeds {limits.MAX_CHUNK_BYTES}")
    return Chunk(root, index, bytes(body[_CHUNK_HEADER.size : begin]), bytes(body[begin:]))
