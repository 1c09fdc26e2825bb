"""HTTP server of a board: its ledger read at most twice a second, and its application on a port."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable

from p2prl.errors import P2PRLError
from p2prl.scoreboard.ledger.ledger_sources import LedgerSource, Snapshot
from p2prl.scoreboard.ledger.signed_head import Witness
from p2prl.scoreboard.web.api import create_app
from p2prl.scoreboard.web.events import EventStreams
from p2prl.scoreboard.web.visitor_limits import VisitorLimits
from p2prl.scoreboard.web.web_server import VISITOR_LIMITS, WebServer

FRESH_S = 0.5
"""Seconds for which a snapshot is used again: shorter than anyone notices, and each one costs several queries."""


class CachedSource:
    """Gives the same snapshot object until the state differs, so that answers made of it can be kept too."""

    def __init__(self, source: LedgerSource, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: Snapshot | None = None
        self._taken_at = float("-inf")

    def snapshot(self) -> Snapshot:
        """The newest state, or one at most `FRESH_S` old."""
        with self._lock:
            if self._kept is None or self._clock() >= self._taken_at + FRESH_S:
                newest = self._source.snapshot()
                self._taken_at = self._clock()
                if newest != self._kept:
                    self._kept = newest
            return self._kept

    def entries(self, from_height: int, limit: int) -> list[bytes]:
        """Consecutive entries from a height on, as bytes."""
        return self._source.entries(from_height, limit)

    def witnesses(self) -> tuple[Witness, ...]:
        """Countersignatures of heads that the ledger agrees with."""
        return self._source.witnesses()

    def failure(self) -> P2PRLError | None:
        """The error that ended the source for good, if there was one."""
        return self._source.failure()


def serve(
    source: LedgerSource,
    *,
    host: str,
    port: int,
    listener: socket.socket | None = None,
    is_public: bool = False,
    on_ready: Callable[[str], None],
) -> None:
    """Serve `source` until Ctrl-C (or SIGTERM), then return.

    `on_ready` gets the board's URL once it answers. Port 0 picks a free port; `listener`, if given, is a socket already
    bound by `p2prl.scoreboard.web.listen_port`. A board that other machines can reach is public, and so is one on
    loopback with `is_public`, behind a proxy. Raises `MachineError` when the port is taken or not allowed, and the
    source's error when the source fails permanently.
    """
    board = BoardServer(source, host=host, port=port, listener=listener, is_public=is_public)
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn re-raises it after shutting down
        board.serve(on_ready)


class BoardServer(WebServer):
    """A board bound to its port: `serve` serves it, `stop` stops it from another thread."""

    def __init__(
        self,
        source: LedgerSource,
        *,
        host: str,
        port: int,
        listener: socket.socket | None = None,
        is_public: bool = False,
        limits: VisitorLimits = VISITOR_LIMITS,
    ) -> None:
        super().__init__(host=host, port=port, listener=listener, is_public=is_public, limits=limits)
        self._source = source

    def serve(self, on_ready: Callable[[str], None]) -> None:
        """Serve until stopped; see the function `serve`."""
        source = CachedSource(self._source)
        streams = EventStreams(source)
        app = create_app(source, is_public=self.is_public, streams=streams)
        # An open stream would hold the server until its grace ends.
        self.run(app, on_ready=on_ready, on_end=streams.close, has_failed=lambda: self._source.failure() is not None)
        failure = self._source.failure()
        if failure is not None:
            raise failure
