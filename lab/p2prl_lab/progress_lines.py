"""Progress of programs that have no screen: one line rewritten in place on a terminal, occasional lines in a file."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

PERIOD_S = 10.0
"""Shortest time between two lines of progress in a file: a night's log stays short."""

_TO_LINE_START_AND_CLEAR = "\r\x1b[K"


def say(text: str) -> None:
    """Print a line on standard error, at once."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


class ProgressLines:
    """Shows how far a program is, and lines that stay."""

    def __init__(self, stream: TextIO | None = None, *, now: Callable[[], float] = time.monotonic) -> None:
        """Without a `stream` it writes to standard error; `now` is in seconds."""
        self._stream = sys.stderr if stream is None else stream
        self._in_place = self._stream.isatty()
        self._now = now
        self._next_at = 0.0
        self._last = ""
        self._open = False
        """Whether the cursor stands behind progress, on a terminal."""

    def show(self, text: str) -> None:
        """The newest progress. In a file: a line when the last one is ten seconds old and said something else."""
        if self._in_place:
            self._write(f"{_TO_LINE_START_AND_CLEAR}{text}")
            self._open = True
        elif self._now() >= self._next_at and text != self._last:
            self._write(f"{text}\n")
            self._last, self._next_at = text, self._now() + PERIOD_S

    def line(self, text: str) -> None:
        """A line that stays; on a terminal it takes the place of the progress."""
        self._write(f"{_TO_LINE_START_AND_CLEAR if self._open else ''}{text}\n")
        self._open = False

    def end(self) -> None:
        """Leave the last progress as a line of its own."""
        if self._open:
            self._write("\n")
            self._open = False

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
