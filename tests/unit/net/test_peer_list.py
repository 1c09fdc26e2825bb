"""Lists of further peers: files, web servers of every kind, and what is refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.errors import ConfigError, UnreachableError
from p2prl.net.process import peer_list
from p2prl.net.process.peer_list import (
    MAX_LIST_BYTES,
    MAX_LISTED,
    download,
    download_apart,
    fetch_list,
    listed_peers,
    parse_list,
)
from p2prl.sim.machines import identity_of

PEER = identity_of("seeder").peer_id
ADDRESS = f"/ip4/8.8.4.4/tcp/4001/p2p/{PEER}"
NAME = f"/dns4/seed.example.org/tcp/4001/p2p/{PEER}"
HOME = f"/ip4/127.0.0.1/tcp/4001/p2p/{PEER}"


def test_a_file_has_an_address_a_line_and_comments(tmp_path: Path) -> None:
    path = tmp_path / "peers.txt"
    path.write_text(f"# our seeders\n\n{ADDRESS}   # Vienna\n  {NAME}\n{ADDRESS}\n{HOME}\n")
    assert listed_peers(str(path)) == (ADDRESS, NAME, HOME)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{ADDRESS}\n/ip4/8.8.4.4/tcp/4001\n", "line 2"),
        ("<html>not found</html>", "line 1"),
        ("# nobody\n", "names no peer"),
        ("", "names no peer"),
        ("#" * (MAX_LIST_BYTES + 1), "64 KiB"),
    ],
)
def test_what_is_no_list_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "peers.txt"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words) as raised:
        listed_peers(str(path))
    assert raised.value.remedy


def test_a_missing_file_and_another_scheme_are_refused(tmp_path: Path) -> None:
    for source in (str(tmp_path / "none"), "ftp://example.org/peers", "file:///etc/passwd", str(tmp_path)):
        with pytest.raises(ConfigError, match="cannot read"):
            listed_peers(source)


def test_a_list_from_the_web_names_no_private_address() -> None:
    text = "\n".join((HOME, ADDRESS, f"/ip4/169.254.169.254/tcp/4001/p2p/{PEER}", NAME)).encode()
    assert listed_peers("https://example.org/peers", fetch=lambda url: text) == (ADDRESS, NAME)


def test_no_more_than_64_are_taken() -> None:
    text = "\n".join(f"/ip4/8.8.4.{number}/tcp/4001/p2p/{PEER}" for number in range(200)).encode()
    assert len(listed_peers("http://example.org", fetch=lambda url: text)) == MAX_LISTED


@given(st.binary(max_size=300))
def test_any_bytes_are_a_list_or_an_error(data: bytes) -> None:
    try:
        found = parse_list(data, "x")
    except ConfigError:
        return
    assert found


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        what = self.path.strip("/")
        if what.startswith("to="):
            self.send_response(302)
            self.send_header("Location", what[3:])
            self.end_headers()
            return
        if what == "gone":
            self.send_error(404)
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"x" * 10_000_000 if what == "huge" else f"{ADDRESS}\n".encode())

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def web() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_list_is_fetched_and_redirects_stay_on_the_web(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("key")
    with web() as url:
        assert download(f"{url}/peers").decode().strip() == ADDRESS
        assert download(f"{url}/to={url}/peers").decode().strip() == ADDRESS
        for bad in (f"{url}/to=file://{secret}", f"{url}/to=ftp://127.0.0.1/x", f"{url}/gone"):
            with pytest.raises(OSError, match=r"(?i)redirect|404"):
                download(bad)
        for bad in (f"file://{secret}", "ftp://127.0.0.1/x"):
            with pytest.raises(OSError, match="no web address"):
                download(bad)


def test_the_fetching_process_gives_bytes_or_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with web() as url:
        assert listed_peers(f"{url}/peers") == (ADDRESS,)
        assert len(fetch_list(f"{url}/huge")) == MAX_LIST_BYTES + 1
        with pytest.raises(UnreachableError, match="404"):
            fetch_list(f"{url}/gone")
        monkeypatch.setattr(peer_list, "_FETCH_S", 0.0)
        with pytest.raises(UnreachableError, match="within 0 s"):
            fetch_list(f"{url}/peers")


def test_a_running_worker_reads_a_list_beside_its_work() -> None:
    assert asyncio.run(download_apart("http://example.org/peers", get=lambda url: url.encode())) == (
        b"http://example.org/peers"
    )


def test_a_server_that_fails_or_hangs_is_unreachable_for_a_running_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(url: str) -> bytes:
        raise OSError("refused")

    with pytest.raises(UnreachableError, match="refused"):
        asyncio.run(download_apart("http://example.org/peers", get=fail))
    monkeypatch.setattr(peer_list, "_FETCH_S", 0.0)
    ended = threading.Event()
    with pytest.raises(UnreachableError, match="within"):
        asyncio.run(download_apart("http://example.org/peers", get=lambda url: bytes(ended.wait(10))))
    ended.set()
