"""Order in which a peer's slots take the rows of a data set: a permutation of its own for every pass. Pure.

Each row comes once a pass, in an order that nobody chooses and any machine computes for one slot alone. The permutation
is a Feistel network over the smallest even number of bits that holds every row; a value that is no row is permuted
again until it is one ("cycle walking": Black and Rogaway, Ciphers with Arbitrary Finite Domains, 2002).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

_DOMAIN = b"p2prl/row-order/v1"

_ROUNDS = 6
"""Four rounds make a random permutation of a large set; a small one needs a few more to mix all its bits."""


@dataclass(frozen=True, slots=True)
class RowOrderKey:
    """Whose order it is, and of which data."""

    run: bytes
    peer: bytes
    task: str


def row_of(key: RowOrderKey, number: int, rows: int) -> int:
    """Row of a peer's slot that has `number` earlier slots of the same task, within 0..rows − 1."""
    pass_number, place = divmod(number, rows)
    half = max(1, -(-(rows - 1).bit_length() // 2))
    prefix = _prefix(key, pass_number)
    while True:
        place = _permute(prefix, place, half)
        if place < rows:
            return place


def _permute(prefix: bytes, value: int, half: int) -> int:
    """One pass of the Feistel network over `2 · half` bits."""
    mask = (1 << half) - 1
    left, right = value >> half, value & mask
    for number in range(_ROUNDS):
        word = hashlib.sha256(prefix + bytes((number,)) + right.to_bytes(8, "little")).digest()
        left, right = right, left ^ (int.from_bytes(word[:8], "little") & mask)
    return left << half | right


def _prefix(key: RowOrderKey, pass_number: int) -> bytes:
    """The length-prefixed parts that every round hashes."""
    parts = (_DOMAIN, key.run, key.peer, key.task.encode(), pass_number.to_bytes(8, "little"))
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)
