"""Counter-based random integers: SHA-256 over a domain, a seed and a counter.

`random` promises the same numbers only within one Python version and one method; these are defined by their bytes.
"""

from __future__ import annotations

import hashlib

from p2prl.errors import LocalProtocolError

SEED_LIMIT = 1 << 63
"""Seeds are 63-bit, as `protocol/work_slots.py` derives them: they fit a signed word everywhere."""


class Draws:
    """A stream of integers fixed by a domain and a seed."""

    def __init__(self, domain: bytes, seed: int) -> None:
        """Start the stream. `domain` is under 256 bytes; `LocalProtocolError` when `seed` is outside 0..2^63 − 1."""
        if not 0 <= seed < SEED_LIMIT:
            raise LocalProtocolError(f"seed {seed} is outside 0..2^63-1")
        self._prefix = bytes([len(domain)]) + domain + seed.to_bytes(8, "little")
        self._counter = 0
        self._block = b""

    def below(self, limit: int) -> int:
        """An integer within 0..limit − 1, for limits up to 2^16 (the modulo's bias stays under 2^-16)."""
        return self._word() % limit

    def chance(self, probability: float) -> bool:
        """True with this probability, in steps of 2^-32."""
        return self._word() < probability * 4294967296.0

    def _word(self) -> int:
        if not self._block:
            self._block = hashlib.sha256(self._prefix + self._counter.to_bytes(8, "little")).digest()
            self._counter += 1
        word, self._block = self._block[:4], self._block[4:]
        return int.from_bytes(word, "little")
