"""Sets of chunks as integers: bit i stands for chunk i, so differences and counts cost next to nothing."""

from __future__ import annotations

from collections.abc import Iterator


def indices_of(bits: int) -> Iterator[int]:
    """The chunk indices of a set, lowest first."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def to_bitmap(bits: int, total: int) -> bytes:
    """The wire's bitmap: one bit per chunk, the first in the lowest bit of the first byte."""
    return bits.to_bytes((total + 7) // 8, "little")


def of_bitmap(bitmap: bytes, total: int) -> int:
    """The set a wire bitmap names; bits past `total` are ignored."""
    return int.from_bytes(bitmap, "little") & ((1 << total) - 1)
