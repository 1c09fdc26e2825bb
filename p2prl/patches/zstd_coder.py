"""zstd frames of a segment's byte streams, with a size that is checked before anything is unpacked."""

from __future__ import annotations

import numpy as np
import zstandard

from p2prl.errors import RemoteProtocolError
from p2prl.patches.byte_reader import ByteReader, Bytes

MAX_WINDOW_BYTES = 8 * 1024 * 1024
"""Memory that a frame may require of its reader; no plane of a segment is larger than 4 MiB."""

_FORMAT = zstandard.FORMAT_ZSTD1_MAGICLESS
"""Saves four bytes per frame, and excludes skippable frames."""

_FAST = zstandard.ZstdCompressionParameters.from_level(1, format=_FORMAT, write_content_size=True)


class ZstdCoder:
    """zstd contexts of one thread. Make one per segment; share none between threads."""

    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor(compression_params=_FAST)
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES, format=_FORMAT)

    def pack(self, data: Bytes) -> tuple[int, bytes]:
        """Return (tag, bytes): a frame or the plain bytes, whichever is shorter.

        The tag is length·2 + (1 for a frame).
        """
        plain = data.tobytes()
        frame = self._compressor.compress(plain)
        if len(frame) < len(plain):
            return len(frame) * 2 + 1, frame
        return len(plain) * 2, plain

    def unpack(self, tag: int, reader: ByteReader, *, least: int, most: int) -> Bytes:
        """Return the bytes behind a tag. Raise `RemoteProtocolError` unless their number is within `least..most`."""
        raw = reader.take(tag >> 1)
        if not tag & 1:
            if not least <= len(raw) <= most:
                raise RemoteProtocolError(f"patch: {len(raw)} plain bytes instead of {least}..{most}")
            return np.frombuffer(raw, dtype=np.uint8)
        try:
            frame = zstandard.get_frame_parameters(raw, format=_FORMAT)
            # The library ignores its own output limit if the header states a size, and allocates that size. Checked
            # first, the stated size is the limit, because the library then writes into a buffer of just that length.
            if not least <= frame.content_size <= most:
                raise RemoteProtocolError(f"patch: a frame states {frame.content_size} bytes, not {least}..{most}")
            if frame.window_size > MAX_WINDOW_BYTES or frame.dict_id:
                raise RemoteProtocolError("patch: a frame needs a large window or a dictionary")
            data = self._decompressor.decompress(raw, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise RemoteProtocolError("patch: a frame cannot be read") from error
        if len(data) != frame.content_size:
            raise RemoteProtocolError("patch: a frame does not have the length it states")
        return np.frombuffer(data, dtype=np.uint8)
