"""Serve the status of this machine's workers to Prometheus over HTTP on loopback, or print it once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from p2prl.cli.commands.status_read import status_documents
from p2prl.cli.views.console import say
from p2prl.cli.views.prometheus_view import prometheus_text
from p2prl.config.worker_folder import default_home
from p2prl.errors import MachineError

HOST = "127.0.0.1"

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_TIMEOUT_S = 5.0
"""Seconds that a client may take for its request."""


def metrics_command(run: Path | None, *, port: int, once: bool, home: Path | None) -> None:
    """Serve the metrics of the workers under `home`, and of the learner of `run`, until Ctrl-C."""
    collect = partial(_collect, run, home or default_home())
    text = collect()  # a wrong run folder is named before anything is served
    if once:
        sys.stdout.write(text)
        return
    with metrics_server(port, collect) as server:
        say(f"metrics    http://{HOST}:{server.server_address[1]}/metrics   Ctrl-C stops it")
        server.serve_forever()


def metrics_server(port: int, collect: Callable[[], str]) -> ThreadingHTTPServer:
    """An HTTP server on loopback for what `collect` returns. Raises `MachineError` when the port is taken."""

    class Handler(BaseHTTPRequestHandler):
        timeout = _TIMEOUT_S

        def do_GET(self) -> None:
            name = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
            if name not in (HOST, "localhost"):  # a page of a stranger whose name leads here
                self._answer(421, "this machine alone\n")
            elif self.path != "/metrics":
                self._answer(404, "see /metrics\n")
            else:
                self._answer(200, collect())

        def _answer(self, status: int, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", _CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Nothing: a scrape every few seconds is no news."""

    try:
        return ThreadingHTTPServer((HOST, port), Handler)
    except OSError as error:
        raise MachineError(
            f"metrics cannot use port {port}: {error}",
            remedy="Choose another one with --port, or stop the program that uses it.",
        ) from error


def _collect(run: Path | None, home: Path) -> str:
    return prometheus_text([*status_documents(None, home), *(status_documents(run, home) if run else [])])
