"""Log of the network process, sent to its role: both share a terminal, and a live panel is redrawn where it ended.

A line that another process prints moves the panel, and the part above stays as it was.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from p2prl.net.process import control


class RoleLog(logging.Handler):
    """Sends each line to the role, as `printed` would print it; prints it once the role has gone."""

    def __init__(self, writer: asyncio.StreamWriter, printed: logging.Handler) -> None:
        """For the event loop that runs; on its thread."""
        super().__init__()
        self._writer = writer
        self._printed = printed
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.setFormatter(printed.formatter)

    def emit(self, record: logging.LogRecord) -> None:
        """Send one line."""
        if self._writer.is_closing() or self._loop.is_closed():
            self._printed.handle(record)
            return
        packed = control.pack(control.Logged(self.format(record)))
        if threading.get_ident() == self._thread:
            self._writer.write(packed)
        else:  # libraries log from threads of their own
            self._loop.call_soon_threadsafe(self._writer.write, packed)


@contextmanager
def logging_to_role(writer: asyncio.StreamWriter) -> Iterator[None]:
    """Log to the role inside this block, where this process would print its log."""
    root = logging.getLogger()
    before = root.handlers[:]
    root.handlers[:] = [RoleLog(writer, handler) for handler in before]
    try:
        yield
    finally:
        root.handlers[:] = before
