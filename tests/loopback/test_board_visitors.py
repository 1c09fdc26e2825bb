"""A board's visitors over real sockets: half requests end, and keep nobody out."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest

from p2prl.scoreboard.web.service import BoardServer
from p2prl.scoreboard.web.visitor_limits import VisitorLimits
from p2prl_lab.testing.sample_ledgers import MemorySource, sample_run

pytestmark = pytest.mark.loopback

HALVES = {
    "nothing": b"",
    "half a header": b"GET /api/v1/run HTTP/1.1\r\nHost: localhost\r\nX-More: ",
    "half a body": b"GET /api/v1/run HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n12",
    "half a second request": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /healthz HT",
    "a chunked body": b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n12",
}

Start = Callable[[VisitorLimits], tuple[str, int]]


@pytest.fixture
def board() -> Iterator[Start]:
    with contextlib.ExitStack() as stack:

        def start(limits: VisitorLimits) -> tuple[str, int]:
            source = MemorySource(sample_run(0, steps=3))
            server, ready = BoardServer(source, host="127.0.0.1", port=0, limits=limits), threading.Event()
            thread = threading.Thread(target=server.serve, args=(lambda _: ready.set(),))
            stack.callback(thread.join, 20)
            stack.callback(server.stop)
            thread.start()
            assert ready.wait(20)
            port = urlsplit(server.url).port
            assert port is not None
            return server.url, port

        yield start


@contextlib.contextmanager
def visitor(port: int, sent: bytes = b"") -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as made:
        made.sendall(sent)
        yield made


def closed_after(made: socket.socket) -> float:
    """Seconds until the board ends a connection."""
    began = time.monotonic()
    with contextlib.suppress(ConnectionResetError):
        while made.recv(1 << 16):
            pass
    return time.monotonic() - began


def height(url: str) -> int:
    with urllib.request.urlopen(f"{url}/api/v1/ledger/head", timeout=20) as answer:
        return int(json.load(answer)["height"])


@pytest.mark.parametrize("half", HALVES)
def test_a_half_request_ends_at_its_deadline(board: Start, half: str) -> None:
    url, port = board(VisitorLimits(header_s=0.5, body_s=0.5))
    with visitor(port, HALVES[half]) as waiting:
        assert closed_after(waiting) < 10
    assert height(url) > 0


def test_bytes_now_and_then_do_not_move_the_deadline(board: Start) -> None:
    _, port = board(VisitorLimits(header_s=0.5, body_s=0.5))
    for half in ("half a header", "half a body"):
        with visitor(port, HALVES[half]) as waiting:
            waiting.settimeout(0.05)
            until = time.monotonic() + 10
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                while time.monotonic() < until:
                    waiting.send(b"x" if half == "half a header" else b"")
                    with contextlib.suppress(TimeoutError):
                        if not waiting.recv(1 << 16):
                            break
            assert time.monotonic() < until


def test_an_honest_visitor_is_answered_beside_hundreds_of_half_requests(board: Start) -> None:
    """Deadlines are far away here: the newcomer takes the place of whoever has waited longest."""
    url, port = board(VisitorLimits(header_s=600, body_s=600, connections=50))
    with contextlib.ExitStack() as stack:
        halves = [stack.enter_context(visitor(port, HALVES["half a header"])) for _ in range(300)]
        began = time.monotonic()
        for _ in range(5):
            assert height(url) > 0
        assert time.monotonic() - began < 5
        assert closed_after(halves[0]) < 5


def test_a_stream_of_events_outlives_the_deadlines(board: Start) -> None:
    _, port = board(VisitorLimits(header_s=0.3, body_s=0.3, read_s=0.3))
    with visitor(port, b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n") as streaming:
        heard = b""
        while b"id: " not in heard:
            heard += streaming.recv(1 << 16)
        streaming.settimeout(1.5)
        with pytest.raises(TimeoutError):  # silent, and open
            streaming.recv(1)


def test_connections_in_use_are_not_closed_for_newcomers(board: Start) -> None:
    _, port = board(VisitorLimits(connections=2))
    request = b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with visitor(port, request) as first, visitor(port, request) as second:
        for streaming in (first, second):
            assert streaming.recv(1 << 16).startswith(b"HTTP/1.1 200")
        with visitor(port) as third:
            assert closed_after(third) < 10
        for streaming in (first, second):
            streaming.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                assert streaming.recv(1 << 16)
