"""The draw by its definition: the noise of every token, on the CPU with numpy.

The fastest way for a small vocabulary, and the answer that other implementations are checked against.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from p2prl.models.seeded_draw.gumbel_noise import Hashes, hashes, noise_of, scrambled
from p2prl.models.seeded_draw.rows import Floats, RowSettings, Scan

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
