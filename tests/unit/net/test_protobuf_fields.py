"""Protobuf fields: the encoding that Google's library writes, and an error for anything cut or malformed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.errors import RemoteProtocolError
from p2prl.net.transports.hivemind.protobuf_fields import BYTES, VARINT, fields, varint


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (1, "01"),
        (127, "7f"),
        (128, "8001"),
        (150, "9601"),  # the example of protobuf's own page on encoding
        (300, "ac02"),
        (16_383, "ff7f"),
        (16_384, "808001"),
        ((1 << 64) - 1, "ffffffffffffffffff01"),
    ],
)
def test_integers_as_protobuf_writes_them(value: int, encoded: str) -> None:
    assert varint(value).hex() == encoded
    assert list(fields(bytes([1 << 3 | VARINT]) + bytes.fromhex(encoded))) == [(1, value)]


def test_a_message_of_every_wire_type() -> None:
    message = (
        b"\x08\x96\x01"  # field 1, an integer
        b"\x12\x07testing"  # field 2, bytes
        b"\x1d\x01\x02\x03\x04"  # field 3, four bytes
        b"\x21\x01\x02\x03\x04\x05\x06\x07\x08"  # field 4, eight bytes
        b"\x82\x01\x00"  # field 16, no bytes: its tag takes two
    )
    assert list(fields(message)) == [(1, 150), (2, b"testing"), (3, b"\1\2\3\4"), (4, bytes(range(1, 9))), (16, b"")]
    assert list(fields(b"")) == []


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("0b", "unknown wire type 3"),
        ("0c", "unknown wire type 4"),
        ("0e", "unknown wire type 6"),
        ("0f", "unknown wire type 7"),
        ("08", "malformed integer"),
        ("0880", "malformed integer"),
        ("08" + "80" * 10, "malformed integer"),
        ("80" * 10 + "01", "malformed integer"),
        ("12", "malformed integer"),
        ("120201", "cut short"),
        ("1d010203", "cut short"),
        ("2101020304050607", "cut short"),
    ],
)
def test_what_is_cut_or_malformed_is_told(data: str, why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        list(fields(bytes.fromhex(data)))


@given(
    st.lists(st.tuples(st.integers(1, 1 << 28), st.integers(0, (1 << 64) - 1) | st.binary(max_size=300)), max_size=6)
)
def test_what_is_written_is_read(written: list[tuple[int, int | bytes]]) -> None:
    message = b"".join(
        varint(number << 3 | VARINT) + varint(value)
        if isinstance(value, int)
        else varint(number << 3 | BYTES) + varint(len(value)) + value
        for number, value in written
    )
    assert list(fields(message)) == written


@given(st.binary(max_size=80))
def test_any_bytes_are_fields_or_an_error(data: bytes) -> None:
    try:
        assert all(number >= 0 for number, _ in fields(data))
    except RemoteProtocolError as error:
        assert "protobuf" in str(error)  # noqa: PT017 - either is right
