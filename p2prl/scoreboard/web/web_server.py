"""HTTP server of a board or an index: uvicorn in this process, on a port that is bound before anything else starts."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

from p2prl.scoreboard.web.listen_port import bind
from p2prl.scoreboard.web.loopback_only import is_loopback
from p2prl.scoreboard.web.visitor_limits import VisitorLimits, bounded_protocol

VISITOR_LIMITS = VisitorLimits()


class WebServer:
    """An application bound to its port: `run` serves it, `stop` stops it from another thread."""

    def __init__(
        self,
        *,
        host: str,
        port: int,
        listener: socket.socket | None = None,
        is_public: bool = False,
        limits: VisitorLimits = VISITOR_LIMITS,
    ) -> None:
        self._limits = limits
        self._socket = listener or bind(host, port)
        bound = self._socket.getsockname()
        shown = host if host not in ("0.0.0.0", "::", "") else "localhost"  # noqa: S104 - compared, not bound
        self.url = f"http://{f'[{shown}]' if ':' in shown else shown}:{bound[1]}"
        self.is_public = is_public or not is_loopback(host)
        """Whether other machines can reach it, by itself or through a proxy."""
        self._server: _Server | None = None
        self._stopped = False

    def run(
        self,
        app: FastAPI,
        *,
        on_ready: Callable[[str], None],
        on_end: Callable[[], None] = lambda: None,
        has_failed: Callable[[], bool] = lambda: False,
    ) -> None:
        """Serve until stopped, or until `has_failed`. `on_ready` gets the URL once it answers; `on_end` is called first
        when it stops, to end what would hold it."""
        config = uvicorn.Config(
            app,
            http=bounded_protocol(self._limits),
            ws="none",
            log_level="error",
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=2,
        )
        self._server = _Server(config, lambda: on_ready(self.url), on_end, has_failed)
        self._server.should_exit = self._stopped
        try:
            asyncio.run(self._server.serve(sockets=[self._socket]))
        finally:
            self._socket.close()

    def stop(self) -> None:
        """Make `run` return soon. May be called from any thread, even before `run`."""
        self._stopped = True
        if self._server is not None:
            self._server.should_exit = True


class _Server(uvicorn.Server):
    """Reports when it is ready, and stops when what it serves has failed."""

    def __init__(
        self,
        config: uvicorn.Config,
        on_started: Callable[[], None],
        on_end: Callable[[], None],
        has_failed: Callable[[], bool],
    ) -> None:
        super().__init__(config)
        self._on_started = on_started
        self._on_end = on_end
        self._has_failed = has_failed

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_end()
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self._has_failed()
