"""Encoding of wire structs as msgpack arrays, and strict, bounded decoding.

Structs travel as arrays (`array_like`), so a field's place is its name on the wire and a field may only be appended.
`decode` returns the requested struct or raises `RemoteProtocolError`; it never returns dicts.
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
    """Encode a struct. Equal structs need not give equal bytes in every release: signatures cover the bytes sent."""
    return _encoder.encode(value)


def decode(data: bytes | memoryview, kind: type[T], *, limit_bytes: int) -> T:
    """Decode one struct of type `kind`. `limit_bytes` is checked before a byte is parsed."""
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
