"""Directory records: only the owner can make, change or extend one, and one flipped bit is always refused."""

from __future__ import annotations

import math
from dataclasses import dataclass
from dataclasses import replace as typed_replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.net.transports.hivemind.directory_records import (
    MAX_RECORD_BYTES,
    MAX_RECORD_TTL_S,
    OwnerSignedRecords,
    owner_of,
)
from p2prl.protocol import limits
from p2prl.protocol.identity import Identity

OWNER = Identity.generate(bytes(16))
OTHER = Identity.generate(b"\x01" * 16)
NOW = 1_800_000_000.0


@dataclass(frozen=True)
class Stored:
    key: bytes
    subkey: bytes
    value: bytes
    expiration_time: float


class StillClock:
    def now(self) -> float:
        return NOW


MINE = OwnerSignedRecords(OWNER, StillClock())
THEIRS = OwnerSignedRecords(OTHER, StillClock())


def packed(value: object) -> bytes:
    return msgspec.msgpack.encode(value)


def subkey(identity: Identity) -> bytes:
    return b"\xd9" + bytes((len(identity.peer_id),)) + identity.peer_id.encode()  # msgpack str8


def replace(record: Stored, **fields: Any) -> Stored:
    """Fields of any type: the sender of a stored dictionary chooses its types."""
    return typed_replace(record, **fields)


def signed(value: bytes = b"hello", expires_at: float = NOW + 60) -> Stored:
    return signed_raw(packed(value), expires_at)


def signed_raw(value: bytes, expires_at: float = NOW + 60) -> Stored:
    record = Stored(b"k" * 20, subkey(OWNER), value, expires_at)
    return replace(record, value=MINE.sign_value(record))


@given(st.binary(min_size=1, max_size=500))
def test_an_owners_record_is_accepted_and_read_back(value: bytes) -> None:
    record = signed(value)
    assert THEIRS.validate(record)
    assert msgspec.msgpack.decode(THEIRS.strip_value(record)) == value


def test_another_peer_cannot_sign_for_the_owner() -> None:
    record = Stored(b"k" * 20, subkey(OWNER), packed(b"hello"), NOW + 60)
    assert MINE.validate(replace(record, value=MINE.sign_value(record)))
    assert not MINE.validate(replace(record, value=THEIRS.sign_value(record)))


@given(st.sampled_from(["key", "subkey", "value"]), st.integers(0), st.integers(0, 7))
def test_one_flipped_bit_is_always_refused(name: str, place: int, bit: int) -> None:
    record = signed()
    data = bytearray(getattr(record, name))
    data[place % len(data)] ^= 1 << bit
    assert not THEIRS.validate(replace(record, **{name: bytes(data)}))


def test_expiry_is_signed_and_bounded() -> None:
    assert not THEIRS.validate(replace(signed(), expiration_time=NOW + 61))
    edge = NOW + MAX_RECORD_TTL_S + limits.MAX_CLOCK_SKEW_S
    assert THEIRS.validate(signed(expires_at=edge))
    for bad in (edge + 1, math.inf, math.nan, -1.0):
        assert not THEIRS.validate(signed(expires_at=bad))


def test_size_is_bounded_and_an_empty_value_is_refused() -> None:
    largest = MAX_RECORD_BYTES - 64 - 3  # the signature, and msgpack's bin16 header
    assert THEIRS.validate(signed(b"x" * largest))
    assert not THEIRS.validate(signed(b"x" * (largest + 1)))
    assert not THEIRS.validate(signed_raw(b""))


@pytest.mark.parametrize(
    "value", [b"\xc1", b"plain", b"\xa5hello", b"\x07", b"\xc5\x00\x01x", b"\xc4\x05hell", b"\x90"]
)
def test_a_signed_value_must_be_msgpack_bytes_because_readers_hang_on_others(value: bytes) -> None:
    assert THEIRS.validate(signed_raw(b"\xc4\x05hello"))
    assert not THEIRS.validate(signed_raw(value))


def test_unowned_records_and_other_encodings_of_an_owner_are_refused() -> None:
    assert owner_of(subkey(OWNER)) == OWNER.peer_id
    text = OWNER.peer_id.encode()
    long_form = b"\xda\x00" + bytes((len(text),)) + text  # the same text as str16 instead of str8
    assert msgspec.msgpack.decode(long_form) == OWNER.peer_id
    for other in (long_form, b"\xc0", b"", b"\xa5hello", packed(7), packed([OWNER.peer_id])):
        assert owner_of(other) is None
        record = Stored(b"k" * 20, other, packed(b"hello"), NOW + 60)
        assert not THEIRS.validate(replace(record, value=MINE.sign_value(record)))


@given(st.binary(max_size=40), st.binary(max_size=80), st.binary(max_size=200), st.floats() | st.integers())
def test_any_bytes_are_validated_without_an_error(key: bytes, sub: bytes, value: bytes, expires_at: float) -> None:
    assert THEIRS.validate(Stored(key, sub, value, expires_at)) is False


def test_values_of_other_types_are_refused() -> None:
    for value in (None, "text", 7, [b"x"]):
        assert not THEIRS.validate(replace(signed(), value=value))
    for expires_at in (None, "soon", True):
        assert not THEIRS.validate(replace(signed(), expiration_time=expires_at))
