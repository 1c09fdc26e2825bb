"""A worker's end of the desktop's watcher (`desktop_sensor`), which is started when a limit first needs it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import msgspec

from p2prl.confinement.children import Launch, Program
from p2prl.controls.desktop_sensor import desktop_missing
from p2prl.controls.watcher import Watcher

STALE_S = 5.0
"""A reading older than this tells nothing: the watcher hangs or is gone."""

_MOST_NAME_CHARACTERS = 40


class Desktop(msgspec.Struct, frozen=True):
    """A reading; None where the desktop does not tell."""

    idle_s: float | None = None
    full_screen: str | None = None
    """Name of the program that fills the screen; empty for none."""
    missing: str = ""
    """A sentence why there is no reading."""
    pending: bool = False
    """Whether the first reading has not come yet."""


_reader = msgspec.json.Decoder(Desktop)

_NOT_YET = Desktop(pending=True)

_GONE = Desktop(missing="the desktop's watcher does not answer")


def desktop_program() -> Program:
    """The watcher's program."""
    return Program(command=(sys.executable, "-m", "p2prl.controls.desktop_sensor"), silent=True)


class DesktopWatch:
    """Starts a watcher at the first `read`, and again when it dies. For one thread."""

    def __init__(self, launch: Launch | None = None, *, now: Callable[[], float] = time.monotonic) -> None:
        """`launch` starts the process where this one may start none; none is started where the desktop hides."""
        self._missing = desktop_missing(os.environ, sys.platform)
        self._now = now
        self._watcher = Watcher(
            launch or desktop_program().start, _reading, pending=_NOT_YET, gone=lambda _: _GONE, now=now
        )

    def read(self) -> Desktop:
        """The newest reading."""
        if self._missing:
            return Desktop(missing=self._missing)
        seen = self._watcher.read()
        still = seen.missing or self._now() - self._watcher.seen_at <= STALE_S  # one without a desktop speaks once
        return seen if still else _GONE

    def close(self) -> None:
        """Hang up: the watcher ends."""
        self._watcher.close()


def _reading(line: bytes) -> Desktop:
    try:
        seen = _reader.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _GONE
    if seen.full_screen:
        shown = "".join(letter for letter in seen.full_screen if letter.isprintable())[:_MOST_NAME_CHARACTERS]
        return msgspec.structs.replace(seen, full_screen=shown or "a full-screen program")
    return seen
