"""Ctrl-C in three steps: finish, stop now, end the process. A terminal that is closed stops at once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from p2prl.cli.views.console import say


class Interrupts:
    """Handles SIGINT and SIGTERM: the first finishes current work, the second stops now, the third kills. SIGHUP acts
    like a second one, unless it is ignored as under `nohup`. A role may do the same at both."""

    def __init__(self, finish: Callable[[], None], stop_now: Callable[[], None], *, finishing: str) -> None:
        """`finishing` is the message shown at the first signal."""
        self._steps = [finish, stop_now]
        self._finishing = finishing
        self._terminals: list[int] = []
        self.count = 0
        self.asked = False
        """Whether a command asked for the end."""

    @contextmanager
    def handled(self) -> Iterator[Interrupts]:
        """Handle the signals inside this block."""
        previous = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            self._terminals = [stream for stream in (1, 2) if os.isatty(stream)]
            previous[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._on_hangup)
        try:
            yield self
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def ask(self, *, stop: bool) -> None:
        """End as a command asks: finish current work, or stop now. From any thread."""
        self.asked = True
        say("Stopping, as p2prl stop asks." if stop else "Finishing the current work, as p2prl finish asks.")
        self._steps[1 if stop else 0]()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.count += 1
        if self.count > len(self._steps):
            raise KeyboardInterrupt
        if self.count == 1:
            say(self._finishing)
        self._steps[self.count - 1]()

    def _on_hangup(self, number: int, frame: FrameType | None) -> None:
        """The terminal was closed. Writing to it fails from now on, in the middle of whatever is being stored."""
        del number, frame
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in self._terminals:
            os.dup2(nowhere, stream)
        os.close(nowhere)
        self.count = len(self._steps)
        self._steps[-1]()
