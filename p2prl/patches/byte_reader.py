"""Bounded reading and writing of integers; the reader never runs past the end of untrusted bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from p2prl.errors import RemoteProtocolError

Bytes = NDArray[np.uint8]


class ByteReader:
    """Cursor over received bytes. It raises `RemoteProtocolError` instead of running past their end."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        self._at = 0

    def take(self, size_bytes: int) -> memoryview:
        """Return the next bytes."""
        if size_bytes > len(self._data) - self._at:
            raise RemoteProtocolError("patch: a segment ends too early")
        self._at += size_bytes
        return self._data[self._at - size_bytes : self._at]

    def integer(self, most: int) -> int:
        """Read a non-negative integer, seven bits per byte, low bits first."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                if value > most:
                    raise RemoteProtocolError(f"patch: {value} exceeds the largest possible value {most}")
                return value
        raise RemoteProtocolError("patch: an integer is too long")

    def finish(self) -> None:
        """Raise unless every byte was read."""
        if self._at != len(self._data):
            raise RemoteProtocolError(f"patch: {len(self._data) - self._at} bytes too many in a segment")


def integers(values: Sequence[int]) -> bytes:
    """Encode values below 2^35 one after the other, for `ByteReader.integer`."""
    out = bytearray()
    for value in values:
        rest = value
        while rest > 127:
            out.append(rest & 127 | 128)
            rest >>= 7
        out.append(rest)
    return bytes(out)
