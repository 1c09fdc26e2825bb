"""`p2prl metrics`: metrics of this machine's workers for Prometheus, over HTTP on loopback alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated

import typer

from p2prl.cli.commands.status import status_documents
from p2prl.cli.options import Home
from p2prl.cli.views.console import say
from p2prl.cli.views.prometheus_view import prometheus_text
from p2prl.config.worker_folder import default_home
from p2prl.errors import MachineError


def metrics(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="Also the learner of this run folder. Default: the workers alone."),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port on 127.0.0.1; 0 picks a free one.")
    ] = 9464,
    once: Annotated[bool, typer.Option("--once", help="Print the metrics once and end. Default: serve them.")] = False,
    home: Home = None,
) -> None:
    """Serve metrics of this machine's workers to Prometheus, on 127.0.0.1 alone.

    They are the numbers of `p2prl status`. No worker serves anything by itself.
    """
    collect = partial(_collect, run, home or default_home())
    text = collect()  # a wrong run folder is named before anything is served
    if once:
        sys.stdout.write(text)
        return
    with metrics_server(port, collect) as server:
        say(f"metrics    http://{HOST}:{server.server_address[1]}/metrics   Ctrl-C stops it")
        server.serve_forever()


HOST = "127.0.0.1"

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_TIMEOUT_S = 5.0
"""Seconds that a client may take for its request."""


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
