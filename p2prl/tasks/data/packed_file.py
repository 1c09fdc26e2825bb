"""Packed file: numbered records in one file, read by number from a memory map and written in one pass.

Layout: 8 bytes of magic, uint64-le number of records `n`, `n + 1` offsets (uint64-le, from the start of the records,
the first 0), then the records. The same records give the same bytes, so the file's digest names the data.
"""

from __future__ import annotations

import mmap
import os
from array import array
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import numpy as np
from numpy.typing import ArrayLike

from p2prl.errors import IntegrityError

MAGIC = b"p2prlpk1"

_HEADER_BYTES = len(MAGIC) + 8

_COPY_BYTES = 1024 * 1024


class PackedWriter:
    """Writes a packed file. The records wait in a temporary file beside it, the offsets in memory (8 bytes each)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._records = TemporaryFile(dir=path.parent)  # noqa: SIM115  # open until `finish`
        self._offsets = array("Q", [0])

    def __enter__(self) -> PackedWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the temporary file back."""
        self._records.close()

    @property
    def size_bytes(self) -> int:
        """Bytes of the file, if it were finished now."""
        return _HEADER_BYTES + 8 * len(self._offsets) + self._offsets[-1]

    def append(self, record: bytes) -> None:
        """Add the next record."""
        self._records.write(record)
        self._offsets.append(self._offsets[-1] + len(record))

    def finish(self, *, without: ArrayLike = ()) -> None:
        """Write the file and sync it to disk. `without` names records to leave out, by number."""
        offsets = np.frombuffer(self._offsets, dtype=np.uint64)
        kept = np.ones(len(offsets) - 1, dtype=bool)
        kept[np.asarray(without, dtype=np.int64)] = False
        ends = np.concatenate((np.zeros(1, np.uint64), np.cumsum(np.diff(offsets)[kept], dtype=np.uint64)))
        with self._path.open("wb") as file:
            file.write(MAGIC + (len(ends) - 1).to_bytes(8, "little"))
            file.write(ends.astype("<u8").tobytes())
            # Runs of records between those left out are copied in one piece.
            edges = np.flatnonzero(np.diff(np.concatenate(((False,), kept, (False,))).astype(np.int8)))
            for first, last in edges.reshape(-1, 2):
                self._copy(file, int(offsets[first]), int(offsets[last]))
            file.flush()
            os.fsync(file.fileno())

    def _copy(self, file: IO[bytes], start: int, end: int) -> None:
        self._records.seek(start)
        while start < end:
            data = self._records.read(min(_COPY_BYTES, end - start))
            file.write(data)
            start += len(data)


class PackedFile:
    """A packed file, open for reading. A stranger may have made it: every offset is checked when it is used."""

    def __init__(self, path: Path) -> None:
        """`IntegrityError` when it is not a packed file."""
        size = path.stat().st_size
        if size < _HEADER_BYTES + 8:
            raise IntegrityError(f"{path.name} is not a packed file: {size} bytes")
        with path.open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._count = int.from_bytes(self._bytes[len(MAGIC) : _HEADER_BYTES], "little")
        self._first = _HEADER_BYTES + 8 * (self._count + 1)
        if self._bytes[: len(MAGIC)] != MAGIC or self._first > size:
            raise IntegrityError(f"{path.name} is not a packed file")
        self._name = path.name

    def __len__(self) -> int:
        return self._count

    @property
    def longest(self) -> int:
        """Bytes of the longest record; 0 without any."""
        offsets = np.frombuffer(self._bytes, dtype="<u8", count=self._count + 1, offset=_HEADER_BYTES)
        return int(np.diff(offsets.astype(np.int64)).max(initial=0))

    def record(self, number: int) -> bytes:
        """Record `number`. `IntegrityError` when the file is damaged, `IndexError` outside it."""
        if not 0 <= number < self._count:
            raise IndexError(f"record {number} of {self._count}")
        start, end = (self._offset(n) for n in (number, number + 1))
        if not 0 <= start <= end <= len(self._bytes) - self._first:
            raise IntegrityError(f"{self._name}: record {number} lies outside the file")
        return self._bytes[self._first + start : self._first + end]

    def _offset(self, number: int) -> int:
        place = _HEADER_BYTES + 8 * number
        return int.from_bytes(self._bytes[place : place + 8], "little")
