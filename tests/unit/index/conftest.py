"""Servers of these tests: indexes of the product, and others that answer what they are told to."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from p2prl.clock import SystemClock
from p2prl.index.index_state import IndexState
from p2prl_lab.testing.served_index import served_index
from tests.unit.index.servers import Answering, Serve


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start an index; returns its URL and state."""
    with ExitStack() as stack:

        def start() -> tuple[str, IndexState]:
            state = IndexState(SystemClock())
            return stack.enter_context(served_index(state, is_public=True)), state

        yield start


@pytest.fixture
def answering() -> Iterator[Answering]:
    """Start a server that answers paths with these bytes."""
    with ExitStack() as stack:
        ended = threading.Event()

        def start(answers: Mapping[str, bytes | None]) -> str:
            class Handler(BaseHTTPRequestHandler):
                def do_GET(self) -> None:
                    answer = answers.get(self.path, b"")
                    if answer is None:
                        ended.wait()
                        return
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.write(answer)

                def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
                    pass

            server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            stack.callback(server.server_close)
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            thread.start()
            stack.callback(ended.set)
            return f"http://127.0.0.1:{server.server_port}"

        yield start
