"""An index of the product, served on this machine by a thread of a test or an experiment."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from p2prl.index.index_app import index_app
from p2prl.index.index_state import IndexState
from p2prl.scoreboard.web.web_server import WebServer


@contextmanager
def served_index(state: IndexState, *, is_public: bool = False) -> Iterator[str]:
    """Serve it inside this block; its address."""
    server, ready = WebServer(host="127.0.0.1", port=0), threading.Event()
    app = index_app(state, is_public=is_public)
    thread = threading.Thread(target=lambda: server.run(app, on_ready=lambda _: ready.set()), daemon=True)
    thread.start()
    ready.wait()
    try:
        yield server.url.rstrip("/")
    finally:
        server.stop()
        thread.join()
