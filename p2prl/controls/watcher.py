"""A worker's end of a small process that watches something for it: the newest reading, without waiting.

The process is started at the first reading, through the worker's starter where the worker is confined, and again some
time after its end. It writes lines, and ends when the worker hangs up or is gone.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from p2prl.confinement.children import Child, Launch

RESTART_S = 60.0
"""A process that died is started again after this long."""

MOST_LINE_BYTES = 4_096

T = TypeVar("T")


class Watcher(Generic[T]):
    """Holds one process. For one thread."""

    def __init__(
        self,
        launch: Launch,
        read_line: Callable[[bytes], T],
        *,
        pending: T,
        gone: Callable[[T], T],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`read_line` makes a reading of a line; `pending` holds before the first, `gone` makes one of the last when
        the process has ended or cannot be started."""
        self._launch, self._read_line, self._now = launch, read_line, now
        self._pending, self._gone = pending, gone
        self._channel: socket.socket | None = None
        self._child: Child | None = None
        self._start_at = float("-inf")
        self._left = b""
        self.newest = pending
        self.seen_at = 0.0
        """When the newest line came."""

    def read(self, said: bytes = b"") -> T:
        """The newest reading. `said` is what a process is told when it starts."""
        now = self._now()
        if self._channel is None and now >= self._start_at:
            self._start(now, said)
        if self._channel is not None:
            self._take(self._channel, now)
        return self.newest

    def close(self) -> None:
        """Hang up: the process ends. A later `read` starts another."""
        self._hang_up()
        self._start_at, self.newest = float("-inf"), self._pending

    def _hang_up(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._child is not None:
            with suppress(TimeoutError):
                self._child.wait(1.0)
            self._child = None

    def _start(self, now: float, said: bytes) -> None:
        self._start_at = now + RESTART_S
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            try:
                ours.send(said)
                self._child = self._launch(theirs.fileno())
            except OSError:
                ours.close()
                self.newest = self._gone(self._pending)
                return
        self._channel, self.newest, self.seen_at, self._left = ours, self._pending, now, b""

    def _take(self, channel: socket.socket, now: float) -> None:
        try:
            while data := channel.recv(MOST_LINE_BYTES):
                *lines, self._left = (self._left + data)[-2 * MOST_LINE_BYTES :].split(b"\n")
                for line in lines:
                    self.newest, self.seen_at = self._read_line(line), now
        except BlockingIOError:
            return
        except OSError:
            pass
        self._hang_up()
        self.newest = self._gone(self.newest)
