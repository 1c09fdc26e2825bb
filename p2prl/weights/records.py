"""What lies beside the words: the claim, which says what they are, and the log of a move between two versions.

The claim is a JSON file, replaced whole. The log is a preamble and one record for each segment, in any order:

    preamble: magic, base and target (number 8 bytes, state 32 each), check
    record: index, changed words, dense (0 or 1), pre, post, then
            sparse: place of each changed word (4 bytes), old words, new words
            dense: all old words, all new words
            check

A check is BLAKE3 of what it follows; a record's also covers the preamble's, so no record of an earlier log that once
lay in the same blocks of the disk is taken for one of this. Both sides of every change are there: a segment that was
half written can be completed and can be undone.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from p2prl.patches.words import Words, WordType
from p2prl.protocol.digests import DIGEST_BYTES, Digest
from p2prl.weights.recovery import Side

MAGIC = b"p2prl-move-1\n"
"""Names the format and its version."""

_PREAMBLE = struct.Struct(f"<{len(MAGIC)}sq{DIGEST_BYTES}sq{DIGEST_BYTES}s")
_RECORD = struct.Struct(f"<IIB{DIGEST_BYTES}s{DIGEST_BYTES}s")
_PLACE = np.dtype("<u4")


@dataclass(frozen=True, kw_only=True)
class Version:
    """A published version of a policy's words."""

    number: int
    """As the manifest counts; negative for the words a run begins with."""
    state: Digest
    """BLAKE3 of all words: the manifest's `state`."""


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the words were when they last were whole. Read after a crash, and checked against them."""

    file: str
    """Name of the file that holds the words."""
    number: int
    state: str
    """Hexadecimal, as are the digests of the segments in `segments`."""
    segments: tuple[str, ...]

    @classmethod
    def of(cls, file: str, version: Version, segments: Sequence[Digest]) -> Claim:
        """The claim that `file` holds a version."""
        return cls(
            file=file,
            number=version.number,
            state=version.state.hex(),
            segments=tuple(segment.hex() for segment in segments),
        )

    @property
    def version(self) -> Version:
        return Version(number=self.number, state=Digest(bytes.fromhex(self.state)))

    @property
    def digests(self) -> list[Digest]:
        """Of the segments."""
        return [Digest(bytes.fromhex(segment)) for segment in self.segments]

    def packed(self) -> bytes:
        return msgspec.json.encode(self)


def read_claim(raw: bytes | memoryview) -> Claim | None:
    """The claim in a file, or None when there is none to be read."""
    try:
        claim = msgspec.json.decode(raw, type=Claim)
        whole = all(len(digest) == DIGEST_BYTES for digest in (claim.version.state, *claim.digests))
    except (msgspec.MsgspecError, ValueError):
        return None
    return claim if whole else None


@dataclass(frozen=True, kw_only=True)
class Move:
    """Which version a log leads from and to."""

    base: Version
    target: Version

    def at(self, side: Side) -> Version:
        return self.base if side is Side.BASE else self.target

    def packed(self) -> bytes:
        """The preamble."""
        raw = _PREAMBLE.pack(
            MAGIC, self.base.number, self.base.state, self.target.number, self.target.state
        )  # fmt: skip
        return raw + blake3(raw).digest()


@dataclass(frozen=True, kw_only=True)
class Record:
    """One segment's words on both sides; only those that differ, unless most do."""

    index: int
    pre: Digest
    post: Digest
    places: NDArray[Any] | None
    """Where in the segment the words stand; None when all are here."""
    old: Words
    new: Words

    def digest(self, side: Side) -> Digest:
        """Of the whole segment on that side."""
        return self.pre if side is Side.BASE else self.post

    def segment(self, found: Words, side: Side) -> Words:
        """The whole segment on that side, given the words found: of either side or a mixture of both."""
        own = self.old if side is Side.BASE else self.new
        if self.places is None:
            return own
        words = found.copy()
        words[self.places] = own
        return words


def pack_record(move: Move, index: int, *, pre: Digest, post: Digest, old: Words, new: Words) -> bytes:
    """The record of a segment whose words go from `old` to `new`."""
    places = np.flatnonzero(old != new).astype(_PLACE)
    dense = len(places) * (_PLACE.itemsize + 2 * old.itemsize) > 2 * old.nbytes
    parts = (old, new) if dense else (places, old[places], new[places])
    head = _RECORD.pack(index, len(old) if dense else len(places), dense, pre, post)
    raw = b"".join([head, *(part.tobytes() for part in parts)])
    return raw + _check(move.packed(), raw)


def read_log(
    raw: memoryview, lengths: Sequence[int], word_type: WordType
) -> tuple[Move | None, dict[int, Record], int]:
    """(move, records by segment, bytes they take) of a log, up to the first byte that a crash cut off or mixed up.

    `lengths` are the words of each segment. Arrays are views of `raw`.
    """
    size = _PREAMBLE.size + DIGEST_BYTES
    preamble = bytes(raw[:size])
    if len(preamble) < size or blake3(preamble[:-DIGEST_BYTES]).digest() != preamble[-DIGEST_BYTES:]:
        return None, {}, 0
    magic, base, base_state, target, target_state = _PREAMBLE.unpack(preamble[:-DIGEST_BYTES])
    if magic != MAGIC:
        return None, {}, 0
    move = Move(
        base=Version(number=base, state=Digest(base_state)), target=Version(number=target, state=Digest(target_state))
    )
    records: dict[int, Record] = {}
    at = size
    while record := _read_record(raw[at:], preamble, lengths, word_type):
        records[record[0].index] = record[0]
        at += record[1]
    return move, records, at


def _read_record(
    raw: memoryview, preamble: bytes, lengths: Sequence[int], word_type: WordType
) -> tuple[Record, int] | None:
    """(record, its bytes), or None when no whole record begins here."""
    if len(raw) < _RECORD.size:
        return None
    index, count, dense, pre, post = _RECORD.unpack(raw[: _RECORD.size])
    if index >= len(lengths) or count > lengths[index] or (dense and count != lengths[index]):
        return None
    places_bytes = 0 if dense else count * _PLACE.itemsize
    words_bytes = count * word_type.word_bytes
    end = _RECORD.size + places_bytes + 2 * words_bytes
    if len(raw) < end + DIGEST_BYTES or _check(preamble, raw[:end]) != raw[end : end + DIGEST_BYTES]:
        return None
    at = _RECORD.size + places_bytes
    record = Record(
        index=index,
        pre=Digest(pre),
        post=Digest(post),
        places=None if dense else np.frombuffer(raw, _PLACE, count, _RECORD.size),
        old=np.frombuffer(raw, word_type.dtype, count, at),
        new=np.frombuffer(raw, word_type.dtype, count, at + words_bytes),
    )
    return record, end + DIGEST_BYTES


def _check(preamble: bytes, raw: bytes | memoryview) -> bytes:
    return blake3(preamble).update(raw).digest()
