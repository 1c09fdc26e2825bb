"""HTTP server of a board: uvicorn in this process, on a port that is bound before anything else starts."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable

import uvicorn

from p2prl.errors import P2PRLError
from p2prl.scoreboard.ledger.ledger_sources import LedgerSource, Snapshot
from p2prl.scoreboard.ledger.signed_head import Witness
from p2prl.scoreboard.web.api import create_app
from p2prl.scoreboard.web.events import EventStreams
from p2prl.scoreboard.web.host_check import is_loopback
from p2prl.scoreboard.web.listen_port import bind
from p2prl.scoreboard.web.visitor_limits import VisitorLimits, bounded_protocol

FRESH_S = 0.5
"""Seconds for which a snapshot is used again: shorter than anyone notices, and each one costs several queries."""

VISITOR_LIMITS = VisitorLimits()


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
        board.run(on_ready)


class BoardServer:
    """A board bound to its port: `run` serves it, `stop` stops it from another thread."""

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
        self._source = source
        self._limits = limits
        self._socket = listener or bind(host, port)
        bound = self._socket.getsockname()
        shown = host if host not in ("0.0.0.0", "::", "") else "localhost"  # noqa: S104 - compared, not bound
        self.url = f"http://{f'[{shown}]' if ':' in shown else shown}:{bound[1]}"
        self._is_public = is_public or not is_loopback(host)
        self._server: _Server | None = None
        self._stopped = False

    def run(self, on_ready: Callable[[str], None]) -> None:
        """Serve until stopped; see `serve`."""
        source = CachedSource(self._source)
        streams = EventStreams(source)
        config = uvicorn.Config(
            create_app(source, is_public=self._is_public, streams=streams),
            http=bounded_protocol(self._limits),
            ws="none",
            log_level="error",
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=2,
        )
        self._server = _Server(config, self._source, streams, lambda: on_ready(self.url))
        self._server.should_exit = self._stopped
        try:
            asyncio.run(self._server.serve(sockets=[self._socket]))
        finally:
            self._socket.close()
        failure = self._source.failure()
        if failure is not None:
            raise failure

    def stop(self) -> None:
        """Make `run` return soon. May be called from any thread, even before `run`."""
        self._stopped = True
        if self._server is not None:
            self._server.should_exit = True


class _Server(uvicorn.Server):
    """Reports when it is ready, and stops when its source has failed."""

    def __init__(
        self, config: uvicorn.Config, source: LedgerSource, streams: EventStreams, on_started: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._source = source
        self._streams = streams
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._streams.close()  # an open stream would hold the server until its grace ends
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self._source.failure() is not None
