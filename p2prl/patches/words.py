"""Machine words: weights as unsigned integers of sign, exponent and mantissa bits, and ulp steps between them.

There is no floating-point arithmetic here. A change is the signed distance between two words on the line of all words,
in units in the last place (ulp). NaN, infinities and both zeros are points on that line too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2prl.errors import RemoteProtocolError

Words = NDArray[Any]
"""One-dimensional array of uint16 (bf16, fp16) or uint32 (fp32) words."""


@dataclass(frozen=True, kw_only=True)
class WordType:
    """A floating-point format."""

    name: str
    """Its name in a layout (`protocol/manifests.py`)."""
    code: int
    """Its number in a patch. A retired number is never used again."""
    bits: int
    """Width of a word."""
    mantissa_bits: int
    """Bits below the exponent."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Little-endian unsigned integers of the word's width: the byte order on the wire and on disk."""
        return np.dtype(f"<u{self.bits // 8}")

    @property
    def word_bytes(self) -> int:
        return self.bits // 8

    @property
    def exponents(self) -> int:
        """Number of exponent values, those of zeros and infinities included."""
        return 1 << (self.bits - 1 - self.mantissa_bits)


BF16 = WordType(name="bfloat16", code=1, bits=16, mantissa_bits=7)
FP16 = WordType(name="float16", code=2, bits=16, mantissa_bits=10)
FP32 = WordType(name="float32", code=3, bits=32, mantissa_bits=23)

WORD_TYPES = {word_type.name: word_type for word_type in (BF16, FP16, FP32)}
_BY_CODE = {word_type.code: word_type for word_type in WORD_TYPES.values()}


def word_type_of(code: int) -> WordType:
    """The word type of a code in a patch. Raise `RemoteProtocolError` for an unknown code."""
    if code not in _BY_CODE:
        raise RemoteProtocolError(f"patch: word type {code} is unknown")
    return _BY_CODE[code]


def exponents_of(words: Words, word_type: WordType) -> NDArray[np.uint8]:
    """The exponent field of each word."""
    fields = (words >> word_type.mantissa_bits).astype(np.uint8)
    return fields if word_type.exponents == 256 else fields & np.uint8(word_type.exponents - 1)


def ordered(words: Words, word_type: WordType) -> Words:
    """Turn words into two's-complement positions on the number line, or back: the function is its own inverse.

    Negative words are in descending order (sign and magnitude), so their magnitude bits are flipped. −0 is just below
    +0.
    """
    magnitude = words.dtype.type((1 << (word_type.bits - 1)) - 1)
    turned: Words = words ^ ((words >> (word_type.bits - 1)) * magnitude)
    return turned


def steps_between(old: Words, new: Words, word_type: WordType) -> Words:
    """Ulp steps from `old` to `new`, as unsigned words modulo 2^bits: any word can be reached from any other."""
    return ordered(new, word_type) - ordered(old, word_type)


def stepped(old: Words, steps: Words, word_type: WordType) -> Words:
    """The words `steps` away from `old`; the inverse of `steps_between`."""
    return ordered(ordered(old, word_type) + steps, word_type)
