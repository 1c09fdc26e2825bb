"""Bytes of a segment's body: bounded reading, integers, bit fields and zstd frames that cannot grow past a cap.

Everything a stranger chose is read through `Reader`, which never goes past the end, and every frame says its size
before a byte of it is unpacked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from p2prl.errors import RemoteProtocolError

Bytes = NDArray[np.uint8]

MAX_WINDOW_BYTES = 8 * 1024 * 1024
"""A frame may ask its reader to keep this much; no plane of a segment is larger than 4 MiB."""

_FORMAT = zstandard.FORMAT_ZSTD1_MAGICLESS
"""Four bytes less per frame, of which a segment has dozens; and the skippable kind of frame does not exist here."""

# Entropy coding almost alone: matches of 7 bytes among independent bytes are accidents and cost more than they save,
# and one Huffman table per frame is what the bytes of one class want. target_length stays 0: with the fast strategy any
# other value turns Huffman codes off.
_ENTROPY = zstandard.ZstdCompressionParameters(
    compression_level=1,
    strategy=zstandard.STRATEGY_FAST,
    window_log=17,
    hash_log=10,
    min_match=7,
    target_length=0,
    format=_FORMAT,
    write_content_size=True,
)
_MATCHING = zstandard.ZstdCompressionParameters.from_level(1, format=_FORMAT, write_content_size=True)


class FrameCoder:
    """zstd contexts of one thread: make one per segment, share none between threads."""

    def __init__(self) -> None:
        self._entropy = zstandard.ZstdCompressor(compression_params=_ENTROPY)
        self._matching = zstandard.ZstdCompressor(compression_params=_MATCHING)
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES, format=_FORMAT)

    def pack(self, data: Bytes, *, matches: bool = False) -> tuple[int, bytes]:
        """(tag, bytes): the frame or the plain bytes, whichever is shorter. The tag is length·2 + (1 for a frame).

        `matches` looks for repeats as well; without it the bytes are taken to be independent draws.
        """
        plain = data.tobytes()
        frame = (self._matching if matches else self._entropy).compress(plain)
        if len(frame) < len(plain):
            return len(frame) * 2 + 1, frame
        return len(plain) * 2, plain

    def unpack(self, tag: int, reader: Reader, *, least: int, most: int) -> Bytes:
        """The bytes behind a tag, of a length within `least..most`. Raises `RemoteProtocolError` otherwise."""
        raw = reader.take(tag >> 1)
        if not tag & 1:
            if not least <= len(raw) <= most:
                raise RemoteProtocolError(f"patch: {len(raw)} plain bytes where {least}..{most} belong")
            return np.frombuffer(raw, dtype=np.uint8)
        try:
            frame = zstandard.get_frame_parameters(raw, format=_FORMAT)
            # The library ignores its own output limit when the header states a size, and allocates that size: checked
            # first, the stated size is the limit, for it then writes into a buffer of just that length.
            if not least <= frame.content_size <= most:
                raise RemoteProtocolError(f"patch: a frame states {frame.content_size} bytes, not {least}..{most}")
            if frame.window_size > MAX_WINDOW_BYTES or frame.dict_id:
                raise RemoteProtocolError("patch: a frame wants a large window or a dictionary")
            data = self._decompressor.decompress(raw, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise RemoteProtocolError("patch: a frame cannot be read") from error
        if len(data) != frame.content_size:
            raise RemoteProtocolError("patch: a frame has not the length it states")
        return np.frombuffer(data, dtype=np.uint8)


class Reader:
    """A cursor over received bytes that raises `RemoteProtocolError` instead of running past their end."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        self._at = 0

    def take(self, size_bytes: int) -> memoryview:
        """The next bytes."""
        if size_bytes > len(self._data) - self._at:
            raise RemoteProtocolError("patch: a segment ends too early")
        self._at += size_bytes
        return self._data[self._at - size_bytes : self._at]

    def integer(self, most: int) -> int:
        """A non-negative integer, seven bits a byte, low bits first."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                if value > most:
                    raise RemoteProtocolError(f"patch: {value} is more than the {most} that are possible")
                return value
        raise RemoteProtocolError("patch: an integer has no end")

    def bits(self, count: int) -> Bytes:
        """`count` bits, one byte each. The padding of the last byte must be zero."""
        raw = np.frombuffer(self.take(-(-count // 8)), dtype=np.uint8)
        bits = np.unpackbits(raw, bitorder="little")
        if bits[count:].any():
            raise RemoteProtocolError("patch: padding bits are set")
        return bits[:count]

    def finish(self) -> None:
        """Raise unless every byte was read."""
        if self._at != len(self._data):
            raise RemoteProtocolError(f"patch: {len(self._data) - self._at} bytes too many in a segment")


def integers(values: Sequence[int]) -> bytes:
    """What `Reader.integer` reads, one after the other. Values below 2^35."""
    out = bytearray()
    for value in values:
        rest = value
        while rest > 127:
            out.append(rest & 127 | 128)
            rest >>= 7
        out.append(rest)
    return bytes(out)


def packed_bits(bits: NDArray[Any]) -> bytes:
    """What `Reader.bits` reads: eight flags a byte, the first in the lowest bit."""
    return np.packbits(bits.astype(bool, copy=False), bitorder="little").tobytes()
