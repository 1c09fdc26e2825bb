"""A rank of another host is known by its token, and tells why it ended."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from p2prl.ranks.torchrun_hosts import _greeted, _last_words

TOKEN = bytes(range(32))


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection over loopback: rank 0's end and the other."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        other = socket.create_connection(listener.getsockname())
        own, _ = listener.accept()
    with own, other:
        yield own, other


@pytest.mark.parametrize(
    ("greeting", "number"),
    [
        (TOKEN + bytes([3, 0, 0, 0]), 3),
        (TOKEN + bytes([0, 1, 0, 0]), 256),
        (bytes([1]) + TOKEN[1:] + bytes([3, 0, 0, 0]), None),
        (TOKEN[:-1] + bytes([0, 3, 0, 0, 0]), None),
        (TOKEN + bytes([3, 0]), None),
        (b"GET / HTTP/1.1\r\n\r\n", None),
        (b"", None),
    ],
)
def test_a_stranger_is_no_rank(pair: tuple[socket.socket, socket.socket], greeting: bytes, number: int | None) -> None:
    own, other = pair
    other.sendall(greeting)
    other.shutdown(socket.SHUT_WR)
    assert _greeted(own, TOKEN) == number


def test_the_last_words_of_a_rank(pair: tuple[socket.socket, socket.socket]) -> None:
    own, other = pair
    assert _last_words(own) is None, "it runs"
    other.sendall(b"out of memory")
    other.close()
    assert _last_words(own) == "out of memory"
    assert _last_words(own) == "out of memory", "they stay readable"


def test_a_rank_that_says_nothing_is_gone(pair: tuple[socket.socket, socket.socket]) -> None:
    own, other = pair
    other.close()
    assert _last_words(own) == ""
