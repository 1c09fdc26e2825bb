"""A worker's end of the watcher of programs (`program_sensor`), which runs while a limit names programs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import msgspec

from p2prl.confinement.children import Launch, Program
from p2prl.controls.watcher import Watcher

STALE_S = 5.0
"""A reading older than this tells nothing."""


class _Seen(msgspec.Struct, frozen=True):
    running: tuple[str, ...] | None = None


_reader = msgspec.json.Decoder(_Seen)


def programs_program(worker: int) -> Program:
    """The watcher's program, for the worker of this process id."""
    return Program(command=(sys.executable, "-m", "p2prl.controls.program_sensor", str(worker)), silent=True)


class ProgramWatch:
    """Asks for one list of programs at a time. For one thread."""

    def __init__(self, launch: Launch | None = None, *, now: Callable[[], float] = time.monotonic) -> None:
        """`launch` starts the process where this one may start none."""
        self._now = now
        self._names: tuple[str, ...] = ()
        self._watcher = Watcher(
            launch or programs_program(os.getpid()).start,
            _reading,
            pending=_Seen(()),
            gone=lambda _: _Seen(),
            now=now,
        )

    def read(self, names: tuple[str, ...]) -> tuple[str, ...] | None:
        """Which of these programs run; None where the watcher does not tell."""
        if names != self._names:
            self._watcher.close()
            self._names = names
        if not names:
            return None
        seen = self._watcher.read(msgspec.json.encode(names) + b"\n")
        if seen.running is None or self._now() - self._watcher.seen_at > STALE_S:
            return None
        return tuple(name for name in names if name in seen.running)

    def close(self) -> None:
        """Hang up: the watcher ends."""
        self._watcher.close()


def _reading(line: bytes) -> _Seen:
    try:
        return _reader.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _Seen()
