"""Codecs for segments of which most words change: planes (byte planes of the steps) and raw (the new words).

Relative to zeros the planes make a keyframe: the step from zero to a word, with the sign in the lowest bit, has the
complete exponent in its top byte, where a few values are far more frequent than the others.
"""

from __future__ import annotations

import numpy as np
import zstandard

from p2prl.errors import RemoteProtocolError
from p2prl.patches.byte_reader import ByteReader, Bytes, integers
from p2prl.patches.words import Words, WordType, stepped, steps_between

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


_MAX_TAG = 1 << 24
"""Largest tag: twice the 2^22 bytes of a plane, plus the frame bit."""


def encode_planes(old: Words, new: Words, word_type: WordType, coder: ZstdCoder) -> bytes:
    """Encode a tag for each byte plane, lowest first, then the planes of the zigzag steps."""
    steps = steps_between(old, new, word_type)
    folded = (steps << 1) ^ ((steps >> (word_type.bits - 1)) * steps.dtype.type((1 << word_type.bits) - 1))
    planes = np.ascontiguousarray(folded.view(np.uint8).reshape(len(folded), word_type.word_bytes).T)
    packed = [coder.pack(plane) for plane in planes]
    return integers([tag for tag, _ in packed]) + b"".join(data for _, data in packed)


def decode_planes(old: Words, body: memoryview, word_type: WordType, coder: ZstdCoder) -> Words:
    """Decode the new words. Raise `RemoteProtocolError` unless `body` holds planes of the length of `old`."""
    reader = ByteReader(body)
    tags = [reader.integer(_MAX_TAG) for _ in range(word_type.word_bytes)]
    planes = [coder.unpack(tag, reader, least=len(old), most=len(old)) for tag in tags]
    reader.finish()
    folded = np.ascontiguousarray(np.stack(planes, axis=1)).view(word_type.dtype).reshape(len(old))
    steps = (folded >> 1) ^ ((folded & 1) * folded.dtype.type((1 << word_type.bits) - 1))
    return stepped(old, steps, word_type)


def decode_raw(old: Words, body: memoryview, word_type: WordType) -> Words:
    """Decode plain words. Raise `RemoteProtocolError` unless there are as many as in `old`."""
    reader = ByteReader(body)
    words = np.frombuffer(reader.take(old.nbytes), dtype=word_type.dtype)
    reader.finish()
    return words.copy()  # aligned and writable, as from every codec
