"""Check that a function takes time linear in its text, on a busy machine."""

from __future__ import annotations

import time
from collections.abc import Callable


def grows_linearly(work: Callable[[str], object], text: Callable[[int], str], *, small: int = 4_000) -> bool:
    """Whether 16 times the text takes under 80 times the processor time: 16 when linear, 256 when quadratic.

    The best of three runs each, and never under 1 ms, which noise could double.
    """
    return _seconds(work, text(16 * small)) < 80 * max(_seconds(work, text(small)), 1e-3)


def _seconds(work: Callable[[str], object], text: str) -> float:
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        work(text)
        best = min(best, time.process_time() - start)
    return best
