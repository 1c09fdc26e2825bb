"""A worker's end of the desktop's watcher (`desktop_sensor`): the newest reading, without waiting.

The watcher is started when a limit first needs it, through the worker's starter where the worker is confined.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from p2prl.confinement.children import Child, Launch, Program
from p2prl.controls.desktop_sensor import desktop_missing

STALE_S = 5.0
"""A reading older than this tells nothing: the watcher hangs or is gone."""

RESTART_S = 60.0
"""A watcher that died is started again after this long."""

_MOST_LINE_BYTES = 4_096

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
        self._launch = launch or desktop_program().start
        self._now = now
        self._channel: socket.socket | None = None
        self._child: Child | None = None
        self._start_at = float("-inf")
        self._left = b""
        self._seen = _NOT_YET
        self._seen_at = 0.0

    def read(self) -> Desktop:
        """The newest reading."""
        if self._missing:
            return Desktop(missing=self._missing)
        now = self._now()
        if self._channel is None and now >= self._start_at:
            self._start(now)
        if self._channel is not None:
            self._take(self._channel, now)
        still = self._seen.missing or now - self._seen_at <= STALE_S  # one without a desktop speaks once
        return self._seen if still else _GONE

    def close(self) -> None:
        """Hang up: the watcher ends."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._child is not None:
            with suppress(TimeoutError):
                self._child.wait(1.0)
            self._child = None

    def _start(self, now: float) -> None:
        self._start_at = now + RESTART_S
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            try:
                self._child = self._launch(theirs.fileno())
            except OSError:
                ours.close()
                self._seen = _GONE
                return
        self._channel, self._seen, self._seen_at, self._left = ours, _NOT_YET, now, b""

    def _take(self, channel: socket.socket, now: float) -> None:
        try:
            while data := channel.recv(_MOST_LINE_BYTES):
                *lines, self._left = (self._left + data)[-2 * _MOST_LINE_BYTES :].split(b"\n")
                for line in lines:
                    self._seen, self._seen_at = _reading(line), now
        except BlockingIOError:
            return
        except OSError:
            pass
        self.close()
        self._seen = _GONE


def _reading(line: bytes) -> Desktop:
    try:
        seen = _reader.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _GONE
    if seen.full_screen:
        shown = "".join(letter for letter in seen.full_screen if letter.isprintable())[:_MOST_NAME_CHARACTERS]
        return msgspec.structs.replace(seen, full_screen=shown or "a full-screen program")
    return seen
