"""GET requests to web addresses that strangers named: to public hosts alone, bounded, and without a redirect.

The owner of a listed run chooses an address that indexes ask. Without rules they would ask their own machine, its
network or a cloud's metadata service. The IP address that was checked is the one that is connected to: a second look-up
of its name could answer something else. No proxy is asked, because it would look the name up itself.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, IncompleteRead
from urllib.parse import SplitResult, urlsplit

from p2prl.errors import TransportError, UnreachableError
from p2prl.net.process.dial_resolution import allowed_ips
from p2prl.swarm.peers.dial_rules import ADDRESSES_PER_DIAL, IP, DialRules, is_dialable_port, is_public_name

ANSWER_S = 10.0
"""From the connection to the end of an answer."""

_PORTS = {"http": 80, "https": 443}

Look = Callable[[str], list[str]]
"""The IP addresses of a name, as texts. Raises `OSError`."""


class AnswerTooLongError(UnreachableError):
    """An answer has more bytes than were asked for."""


def look_up(host: str) -> list[str]:
    """What this machine's resolver says."""
    return [str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]


@dataclass(frozen=True, slots=True)
class PublicWeb:
    """Asks web servers at addresses that `rules` permit."""

    rules: DialRules = DialRules()  # noqa: RUF009 - immutable
    look: Look = look_up
    answer_s: float = ANSWER_S

    def get(self, url: str, most: int) -> bytes:
        """The body of an answer of at most `most` bytes. `url` is spelled as `web_address` does, with or without a
        query. Raises `UnreachableError`, and for a longer body `AnswerTooLongError`."""
        where = urlsplit(url)
        host, port = where.hostname or "", where.port or _PORTS[where.scheme]
        try:
            ips = self._ips(host, port)
            with self._connected(where, ips, port) as connection:
                return _exchange(connection, where, most)
        except TransportError as error:
            raise UnreachableError(str(error)) from error
        except (OSError, HTTPException, ValueError) as error:
            raise UnreachableError(f"{where.netloc} gives no answer of HTTP within {self.answer_s:.0f} s") from error

    def _ips(self, host: str, port: int) -> list[IP]:
        """Where to connect to. Raises `TransportError` for what a stranger may not name, or what leads nowhere."""
        is_named_here = self.rules.is_local and host == "localhost"
        if not is_dialable_port(port) or not (_is_ip(host) or is_named_here or is_public_name(host)):
            raise TransportError(f"{host[:80]}:{port} is no address of a public web server")
        try:
            found = self.look(host)
        except (OSError, UnicodeError) as error:  # the latter of a label that is too long
            raise TransportError(f"{host[:80]} leads nowhere") from error
        return allowed_ips(host, found, self.rules)

    @contextmanager
    def _connected(self, where: SplitResult, ips: list[IP], port: int) -> Iterator[socket.socket]:
        """A connection inside this block, which ends at its deadline whatever the other side sends."""
        deadline = time.monotonic() + self.answer_s
        connection = _first_connection(ips[:ADDRESSES_PER_DIAL], port, deadline)
        if connection is None:  # an index shows it to everybody, so it says nothing of what the name led to, or why
            raise TransportError(f"{where.netloc} cannot be reached")
        if where.scheme == "https":
            connection = ssl.create_default_context().wrap_socket(
                connection, server_hostname=where.hostname, do_handshake_on_connect=False
            )
        # A timeout of the socket begins anew with each byte; one who sends a byte at a time would never be done.
        end = threading.Timer(max(0.0, deadline - time.monotonic()), _shut, (connection,))
        end.daemon = True
        end.start()
        try:
            with connection:
                if isinstance(connection, ssl.SSLSocket):
                    connection.do_handshake()
                yield connection
        finally:
            end.cancel()


def _first_connection(ips: list[IP], port: int, deadline: float) -> socket.socket | None:
    """A connection to the first of these that takes one."""
    for ip in ips:
        left = deadline - time.monotonic()
        if left <= 0:
            break
        with contextlib.suppress(OSError):
            return socket.create_connection((str(ip), port), timeout=left)
    return None


def _exchange(connection: socket.socket, where: SplitResult, most: int) -> bytes:
    """Ask over a connection. Raises `OSError`, `HTTPException` and `ValueError`."""
    client = HTTPConnection(where.netloc)  # which parses HTTP and opens nothing
    client.sock = connection
    target = (where.path or "/") + (f"?{where.query}" if where.query else "")
    client.request("GET", target, headers={"User-Agent": "p2prl", "Connection": "close"})
    with client.getresponse() as response:
        if response.status != 200:  # a redirect too: it would lead to an address that nobody checked
            raise UnreachableError(f"{where.netloc} answers with status {response.status}")
        body = response.read(most + 1)
        missing = response.length
    if len(body) <= most and missing:
        raise IncompleteRead(body, missing)
    if len(body) > most:
        raise AnswerTooLongError(f"{where.netloc} gave more than {most:,} bytes")
    return body


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        # Not that of a TLS connection, which drops what its reader in another thread is using.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
