"""Fields of protobuf messages, as libp2p's small protocols use them: read, and written one by one. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from p2prl.errors import RemoteProtocolError

VARINT, _FIXED64, BYTES, _FIXED32 = 0, 1, 2, 5
"""Wire types of protobuf; the two others are groups, which nobody writes any more."""


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field: an integer, or the bytes of anything else. Raises `RemoteProtocolError`."""
    place = 0
    while place < len(data):
        tag, place = _take_varint(data, place)
        kind = tag & 7
        value: int | bytes
        if kind == VARINT:
            value, place = _take_varint(data, place)
        elif kind in (BYTES, _FIXED64, _FIXED32):
            size = {_FIXED64: 8, _FIXED32: 4}.get(kind, 0)
            if kind == BYTES:
                size, place = _take_varint(data, place)
            value, place = data[place : place + size], place + size
            if place > len(data):
                raise RemoteProtocolError("protobuf: a field is cut short")
        else:
            raise RemoteProtocolError(f"protobuf: unknown wire type {kind}")
        yield tag >> 3, value


def _take_varint(data: bytes, place: int) -> tuple[int, int]:
    """The integer at `place`, and the place behind it."""
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            break
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise RemoteProtocolError("protobuf: a malformed integer")


def varint(value: int) -> bytes:
    """The encoding of an integer."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))
