"""A text as a QR code drawn with one SVG path. Needs the extra `qr` (segno); without it the page shows no code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

QUIET = 4
"""Modules of margin, as the standard asks for: a page has the room that a terminal lacks."""

_MAX_CHARS = 1_200
"""Longer texts make modules too small for a phone's camera."""


@dataclass(frozen=True, slots=True)
class QrCode:
    """A drawn code."""

    side: int
    """Width and height in modules, with the margin."""
    path: str
    """The dark modules."""


@lru_cache(maxsize=4)
def qr_code(text: str) -> QrCode | None:
    """The code of a text; None when it is too long or the library is not installed."""
    if not text or len(text) > _MAX_CHARS:
        return None
    try:
        import segno
    except ImportError:
        return None
    return drawn(segno.make(text, error="l", micro=False).matrix)


def drawn(modules: Sequence[Sequence[int]]) -> QrCode:
    """Draw rows of modules, 1 for dark: one rectangle for each run of dark modules in a row."""
    runs = []
    for y, row in enumerate(modules):
        for dark, run in groupby(enumerate(row), key=lambda item: bool(item[1])):
            places = [x for x, _ in run]
            if dark:
                runs.append(f"M{places[0] + QUIET} {y + QUIET}h{len(places)}v1h-{len(places)}z")
    return QrCode(len(modules) + 2 * QUIET, "".join(runs))
