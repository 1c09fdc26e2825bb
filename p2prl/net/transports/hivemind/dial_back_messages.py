"""Messages of libp2p's AutoNAT, version 1 (`/libp2p/autonat/1.0.0`), as protobuf. Pure.

A peer asks whether it can be dialed; the answer is yes, no, or that nobody tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

from p2prl.errors import RemoteProtocolError

PROTOCOL = "/libp2p/autonat/1.0.0"

MAX_MESSAGE_BYTES = 4_096
"""As in go-libp2p: a peer id and some dozen addresses."""

_DIAL, _DIAL_RESPONSE = 0, 1
"""Types of message."""

_MAX_ADDRESSES = 16
"""Of a request; more are not read. go-libp2p dials no more either."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Wire types of protobuf; the two others are groups, which nobody writes any more."""


class Status(IntEnum):
    """Answer to a request."""

    OK = 0
    DIAL_FAILED = 100
    REFUSED = 101
    """Nobody tried: the asker asks another peer, or later."""


def asked_addresses(message: bytes) -> tuple[bytes, ...]:
    """The binary multiaddrs of a request. Raises `RemoteProtocolError` for anything else."""
    if len(message) > MAX_MESSAGE_BYTES:
        raise RemoteProtocolError("autonat: the request is too large")
    kind, dial = _DIAL, b""
    for number, value in _fields(message):
        if number == 1 and isinstance(value, int):
            kind = value
        elif number == 2 and isinstance(value, bytes):
            dial = value
    if kind != _DIAL:
        raise RemoteProtocolError("autonat: not a request")
    peer = b"".join(value for number, value in _fields(dial) if number == 1 and isinstance(value, bytes))
    addresses = (value for number, value in _fields(peer) if number == 2 and isinstance(value, bytes))
    return tuple(addresses)[:_MAX_ADDRESSES]


def answer_of(status: Status, address: bytes = b"") -> bytes:
    """The answer to a request; `address` is the binary multiaddr that was reached."""
    response = _varint(1 << 3 | _VARINT) + _varint(status)
    if address:
        response += _varint(3 << 3 | _BYTES) + _varint(len(address)) + address
    kind = _varint(1 << 3 | _VARINT) + _varint(_DIAL_RESPONSE)
    return kind + _varint(3 << 3 | _BYTES) + _varint(len(response)) + response


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field: an integer, or the bytes of anything else."""
    place = 0
    while place < len(data):
        tag, place = _take_varint(data, place)
        kind = tag & 7
        value: int | bytes
        if kind == _VARINT:
            value, place = _take_varint(data, place)
        elif kind in (_BYTES, _FIXED64, _FIXED32):
            size = {_FIXED64: 8, _FIXED32: 4}.get(kind, 0)
            if kind == _BYTES:
                size, place = _take_varint(data, place)
            value, place = data[place : place + size], place + size
            if place > len(data):
                raise RemoteProtocolError("autonat: a field is cut short")
        else:
            raise RemoteProtocolError(f"autonat: unknown wire type {kind}")
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
    raise RemoteProtocolError("autonat: a malformed integer")


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))
