"""Web addresses that strangers named: none leads into a private network, and no server floods its reader."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from p2prl.errors import UnreachableError
from p2prl.index.public_web import AnswerTooLongError, PublicWeb
from p2prl.swarm.peers.dial_rules import DialRules
from tests.unit.index.servers import Answering

LOCAL = DialRules(is_local=True)

Speak = Callable[[socket.socket, threading.Event], None]
Speaking = Callable[[Speak], int]
"""Starts a server that does this with each connection after it has read something; its port."""


@pytest.fixture
def speaking() -> Iterator[Speaking]:
    with ExitStack() as stack:
        ended = threading.Event()

        def start(speak: Speak) -> int:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

            def serve() -> None:
                while not ended.is_set():
                    try:
                        connection, _ = listener.accept()
                    except OSError:
                        return
                    with connection:
                        try:
                            connection.recv(65_536)
                            speak(connection, ended)
                        except OSError:
                            continue

            thread = threading.Thread(target=serve)
            stack.callback(thread.join)
            stack.callback(lambda: listener.shutdown(socket.SHUT_RDWR))
            stack.callback(ended.set)
            thread.start()
            return int(listener.getsockname()[1])

        yield start


def no_connection(*_: object, **__: object) -> socket.socket:
    raise AssertionError("it connects")


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "127.8.8.8", "localhost", "0.0.0.0", "10.0.0.1", "172.16.3.4", "192.168.1.1", "100.64.0.1",
        "169.254.169.254", "224.0.0.1", "255.255.255.255", "[::1]", "[::]", "[fe80::1]", "[fd00:ec2::254]",
        "[::ffff:127.0.0.1]", "[::ffff:169.254.169.254]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[ff02::1]",
        "metadata.google.internal", "printer.local", "intranet", "nas.lan", "1.0.0.127.in-addr.arpa",
    ],
)  # fmt: skip
def test_no_address_leads_into_a_private_network(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "create_connection", no_connection)
    web = PublicWeb(look=lambda name: [name])
    with pytest.raises(UnreachableError):
        web.get(f"http://{host}/latest/meta-data", 1_000)


@pytest.mark.parametrize("port", [22, 25, 53, 1023, 3306, 5432, 6379, 9200, 11211, 27017])
def test_no_address_leads_to_a_service_that_answers_everybody(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "create_connection", no_connection)
    with pytest.raises(UnreachableError, match="no address of a public web server"):
        PublicWeb(look=lambda _: ["93.184.216.34"]).get(f"http://board.example:{port}", 1_000)


@pytest.mark.parametrize(
    "found",
    [
        ["127.0.0.1"],
        ["10.1.2.3"],
        ["169.254.169.254"],
        ["::1"],
        ["fe80::1%eth0"],
        ["93.184.216.34", "192.168.0.1"],
        ["2606:2800:220:1::1", "fd00::1"],
        [],
    ],
)
def test_no_name_leads_into_a_private_network(found: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "create_connection", no_connection)
    with pytest.raises(UnreachableError, match="only its own network may dial"):
        PublicWeb(look=lambda _: found).get("https://board.example", 1_000)


def test_the_address_that_was_checked_is_the_one_that_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([["93.184.216.34"], ["127.0.0.1"]])
    dialed: list[tuple[str, int]] = []

    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        assert 0 < timeout <= 10
        dialed.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(UnreachableError, match=r"^board\.example cannot be reached$"):
        PublicWeb(look=lambda _: next(answers)).get("http://board.example/x", 1_000)
    assert dialed == [("93.184.216.34", 80)]
    assert next(answers) == ["127.0.0.1"]  # nobody asked a second time


def test_a_name_that_leads_nowhere_and_a_port_that_nobody_serves_are_told_apart() -> None:
    def nowhere(_: str) -> list[str]:
        raise socket.gaierror

    with pytest.raises(UnreachableError, match=r"^board\.example leads nowhere$"):
        PublicWeb(look=nowhere).get("http://board.example", 1_000)
    with pytest.raises(UnreachableError, match=r"^127\.0\.0\.1:9999 cannot be reached$"):
        PublicWeb(LOCAL, answer_s=0.5).get("http://127.0.0.1:9999", 1_000)


def test_an_index_of_this_machine_alone_reads_its_boards_and_no_other_private_ones(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = answering({"/a?b=1": b"here"})
    assert PublicWeb(LOCAL).get(f"{url}/a?b=1", 4) == b"here"
    assert PublicWeb(LOCAL).get(url.replace("127.0.0.1", "localhost") + "/a?b=1", 4) == b"here"
    with pytest.raises(UnreachableError, match="only its own network"):
        PublicWeb().get(f"{url}/a?b=1", 4)
    monkeypatch.setattr(socket, "create_connection", no_connection)
    for host in ("192.168.1.1", "169.254.169.254", "10.0.0.1"):
        with pytest.raises(UnreachableError, match="only its own network"):
            PublicWeb(LOCAL).get(f"http://{host}", 4)


def test_an_answer_that_is_too_long_is_left(answering: Answering) -> None:
    url = answering({"/": bytes(1_001)})
    with pytest.raises(AnswerTooLongError, match="more than 1,000 bytes"):
        PublicWeb(LOCAL).get(url, 1_000)


def said(text: bytes) -> Speak:
    return lambda connection, _: connection.sendall(text)


def dripped(first: bytes, again: bytes) -> Speak:
    """One byte after the other, each soon enough for a timeout that begins anew."""

    def speak(connection: socket.socket, ended: threading.Event) -> None:
        connection.sendall(first)
        while not ended.wait(0.01):
            connection.sendall(again)

    return speak


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:22/\r\n\r\n", "answers with status 302"),
        (b"HTTP/1.1 301 Moved\r\nLocation: file:///etc/passwd\r\n\r\n", "answers with status 301"),
        (b"HTTP/1.1 206 Partial\r\nContent-Length: 1\r\n\r\nx", "answers with status 206"),
        (b"HTTP/1.1 500 No\r\n\r\n", "answers with status 500"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "no answer of HTTP"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "no answer of HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort", "no answer of HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1_000 + b"\r\n", "no answer of HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n", "no answer of HTTP"),
        (b"", "no answer of HTTP"),
    ],
)
def test_redirects_and_what_is_no_http_are_refused(speaking: Speaking, text: bytes, why: str) -> None:
    with pytest.raises(UnreachableError, match=why):
        PublicWeb(LOCAL).get(f"http://127.0.0.1:{speaking(said(text))}", 1_000)


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (b"", b""),
        (b"HTTP/1.1 200 OK\r\n", b"X"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    ],
)
def test_a_server_that_takes_its_time_is_left_at_the_deadline(speaking: Speaking, first: bytes, again: bytes) -> None:
    port = speaking(dripped(first, again))
    try:
        body = PublicWeb(LOCAL, answer_s=0.3).get(f"http://127.0.0.1:{port}", 1 << 20)
    except UnreachableError:
        return
    assert set(body) <= {ord("x")}, "a body without a length ends with its connection, which the deadline ends"


def test_a_handshake_that_does_not_end_is_left_at_the_deadline(speaking: Speaking) -> None:
    port = speaking(dripped(b"\x16\x03\x03", b"\x00"))
    with pytest.raises(UnreachableError, match="no answer of HTTP"):
        PublicWeb(LOCAL, answer_s=0.3).get(f"https://127.0.0.1:{port}", 1_000)


def test_a_certificate_that_nobody_vouches_for_is_refused(speaking: Speaking, tmp_path: Path) -> None:
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path / "server.pem"
    file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(file)
    listener = socket.create_server(("127.0.0.1", 0))
    seen: list[bytes] = []

    def serve() -> None:
        connection, _ = listener.accept()
        try:
            with served.wrap_socket(connection, server_side=True) as secured:
                seen.append(secured.recv(100))
        except OSError:
            return

    thread = threading.Thread(target=serve)
    thread.start()
    with listener, pytest.raises(UnreachableError, match="no answer of HTTP"):
        PublicWeb(LOCAL).get(f"https://localhost:{listener.getsockname()[1]}", 1_000)
    thread.join()
    assert seen in ([], [b""]), "nothing was asked"
