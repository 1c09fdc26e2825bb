"""Redo records: the words of a segment that change, as positions and new values. Pure.

A record is absolute: writing it a second time, or over a segment that was half written, gives the same words. That is
what a patch cannot do, whose steps are relative to the old words.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from p2prl.errors import IntegrityError
from p2prl.patches.words import Words, WordType

_HEADER = struct.Struct("<BI")
_POSITIONS, _ALL = 0, 1
_POSITION = np.dtype("<u4")


def redo_record(changed: NDArray[np.integer], new: Words, word_type: WordType) -> bytes:
    """The record that turns the words that differ from `new` at `changed`, or a mix of both, into `new`: these
    positions, or all words if that is shorter."""
    if len(changed) * (_POSITION.itemsize + word_type.word_bytes) >= new.nbytes:
        return _HEADER.pack(_ALL, len(new)) + new.astype(word_type.dtype, copy=False).tobytes()
    positions: bytes = changed.astype(_POSITION).tobytes()
    values: bytes = new[changed].astype(word_type.dtype, copy=False).tobytes()
    return _HEADER.pack(_POSITIONS, len(changed)) + positions + values


def changes_of(record: bytes, words: int, word_type: WordType) -> tuple[Words | slice, Words]:
    """(positions, new words) of a record for a segment of `words` words. `IntegrityError` when it is damaged."""
    if len(record) < _HEADER.size:
        raise IntegrityError("redo: a record without a header")
    kind, count = _HEADER.unpack_from(record)
    sparse = kind == _POSITIONS
    if kind not in (_POSITIONS, _ALL) or (not sparse and count != words):
        raise IntegrityError("redo: an impossible record")
    values_at = _HEADER.size + (count * _POSITION.itemsize if sparse else 0)
    if len(record) != values_at + count * word_type.word_bytes:
        raise IntegrityError("redo: a record of the wrong length")
    values = np.frombuffer(record, dtype=word_type.dtype, offset=values_at)
    if not sparse:
        return slice(0, words), values
    positions = np.frombuffer(record, dtype=_POSITION, count=count, offset=_HEADER.size)
    if count and int(positions.max()) >= words:
        raise IntegrityError("redo: a position beyond the segment")
    return positions, values
