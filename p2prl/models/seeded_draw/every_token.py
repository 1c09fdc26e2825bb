"""The draw by its definition, the noise of every token, on the CPU with numpy; and rows whose draw it gives.

The fastest way for a small vocabulary, and the answer that other implementations are checked against.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from p2prl.models.seeded_draw.gumbel_noise import Hashes, Indices, hashes, noise_of, row_states, scrambled
from p2prl.models.seeded_draw.rows import Floats, RowSettings, Scan

_VOCABULARY = 5000


@dataclass(frozen=True, slots=True)
class KnownRows:
    """Logits (4, V) and the rows' settings."""

    logits: Floats
    rows: RowSettings
    seeds: Indices
    positions: Indices

    @classmethod
    def make(cls) -> KnownRows:
        """Rows with equal logits, close ones and spread ones, some of them infinite."""
        tokens = np.arange(_VOCABULARY, dtype=np.int64)
        steps = [tokens * 0, tokens * 40_503 % 9973, tokens * 30_011 % 7919, tokens * 31_337 % 5]
        logits = np.stack(steps).astype(np.float32)
        logits[2:, ::7] = -np.inf
        seeds = np.arange(4, dtype=np.int64) * 0x1234_5678_9ABC_DEF
        temperatures = np.array([1.0, 1e3, 7e-2, 1e-7], dtype=np.float32)
        return cls(logits, RowSettings(temperatures, row_states(seeds, seeds % 97)), seeds, seeds % 97)


def critical_hashes() -> Hashes:
    """Hashes where approximate noise goes wrong first: both ends, the middle, and an even sample of the rest."""
    ends = np.arange(1 << 12, dtype=np.uint32)
    sample = np.arange(0, 1 << 32, 65_537, dtype=np.uint64).astype(np.uint32)
    return np.concatenate([ends, ~ends, ends + np.uint32((1 << 31) - (1 << 11)), sample])


_ELEMENTS = 1 << 20
"""Most noise computed at once: float64 temporaries of 8 MiB stay in the cache."""


def scan(logits: Floats, rows: RowSettings, *, with_sums: bool) -> Scan:
    """See `rows.Scan`. `logits` (N, V)."""
    count, vocabulary = logits.shape
    result = Scan.empty(count)
    step = max(1, _ELEMENTS // vocabulary)
    for start in range(0, count, step):
        part = slice(start, start + step)
        with np.errstate(all="ignore"):  # logits may be infinite or not numbers
            _scan_part(logits[part], rows[part], result[part], with_sums)
    return result


def _scan_part(logits: Floats, rows: RowSettings, result: Scan, with_sums: bool) -> None:
    scaled = logits / rows.temperatures[:, None]
    noisy = scaled + noise_of(hashes(rows.states[:, None], _tokens(logits.shape[1])))
    noisy.argmax(axis=1, out=result.tokens)
    result.best[:] = noisy[np.arange(len(noisy)), result.tokens]
    if with_sums:
        top = scaled.max(axis=1)
        scaled -= top[:, None]
        result.log_sums[:] = top + np.log(np.exp(scaled, out=scaled).sum(axis=1))


@lru_cache(maxsize=2)
def _tokens(vocabulary: int) -> Hashes:
    return scrambled(vocabulary)
