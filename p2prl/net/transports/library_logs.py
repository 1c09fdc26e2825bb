"""Log output of network libraries, under our logger's name and at debug level."""

from __future__ import annotations

import logging


class _Forward(logging.Handler):
    def __init__(self, ours: logging.Logger) -> None:
        super().__init__()
        self._ours = ours

    def emit(self, record: logging.LogRecord) -> None:
        level = record.levelno if record.levelno >= logging.CRITICAL else logging.DEBUG
        if self._ours.isEnabledFor(level):
            self._ours.log(level, "%s", record.getMessage(), exc_info=record.exc_info)


def route(library: str) -> None:
    """Send the log of `library` to `p2prl.net.<library>` and nowhere else.

    These libraries log every peer that disconnects as an error with its traceback; in a swarm of volunteers that
    happens every minute. Errors that matter reach callers as exceptions.
    """
    ours = logging.getLogger(f"p2prl.net.{library}")
    theirs = logging.getLogger(library)
    for handler in list(theirs.handlers):
        theirs.removeHandler(handler)
    theirs.addHandler(_Forward(ours))
    theirs.propagate = False
    theirs.setLevel(logging.DEBUG if ours.isEnabledFor(logging.DEBUG) else logging.CRITICAL)
