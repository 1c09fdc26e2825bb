"""Rows whose draw is known by the definition, which an implementation draws once before it is used."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from p2prl.models.seeded_draw.gumbel_noise import Hashes, Indices, row_states
from p2prl.models.seeded_draw.rows import Floats, RowSettings

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
