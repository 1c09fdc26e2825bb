"""Bytes to typed structs and back: msgpack arrays through msgspec, strict and bounded.

Structs travel as arrays (`array_like`), so a field's place is its name on the wire and a field may only be appended.
A decoder never yields dicts, and never anything but the struct that was asked for or `RemoteProtocolError`.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from p2prl.errors import RemoteProtocolError

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()
_decoders: dict[type, msgspec.msgpack.Decoder[Any]] = {}


class Wire(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of every struct that crosses the network."""


def encode(value: msgspec.Struct) -> bytes:
    """The wire bytes of a struct. Nothing relies on equal structs giving equal bytes: signatures cover sent bytes."""
    return _encoder.encode(value)


def decode(data: bytes | memoryview, kind: type[T], *, limit_bytes: int) -> T:
    """One struct of type `kind`, or `RemoteProtocolError`. `limit_bytes` is checked before a byte is parsed."""
    if len(data) > limit_bytes:
        raise RemoteProtocolError(f"{kind.__name__} of {len(data)} bytes exceeds the limit of {limit_bytes}")
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    try:
        value: T = decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, OverflowError, ValueError) as error:
        raise RemoteProtocolError(f"not a {kind.__name__}: {error}") from error
    return value
