"""The pool's side of one worker: its socket, with a deadline for everything that is sent or read."""

from __future__ import annotations

import socket
import time

from p2prl.confinement.children import Child
from p2prl.errors import RemoteProtocolError
from p2prl.tasks.sandbox import frames
from p2prl.tasks.sandbox.frames import Reply

START_S = 20.0
"""How long a worker may take to be ready, seconds: milliseconds, unless the machine hardly moves."""

_SHORTEST_WAIT_S = 0.001
"""A reply that has arrived is read even after its deadline: this process may have been the slow one."""

_REST_S = 0.25
"""Time for the rest of a reply once its first byte is there: a worker writes it at once, a hostile one dribbles."""


class WorkerEndedError(Exception):
    """The worker ended, or sent what no worker sends."""


class WorkerProcess:
    """A worker that scores for one lane."""

    def __init__(self, connection: socket.socket, *, number: int, server: Child, once: bool) -> None:
        """`number` is the fork server's for it."""
        self._connection = connection
        self._pid = 0
        self.number = number
        self._server = server
        self.once = once
        self.scored = 0
        self.yields = False

    def wait_until_ready(self) -> None:
        """Wait until the worker is confined. `WorkerEndedError` when it will not be."""
        if self._pid:
            return
        try:
            ready = receive_exactly(self._connection, frames.READY.size, until=time.monotonic() + START_S)
        except OSError as error:
            raise WorkerEndedError from error
        self._pid = int(frames.READY.unpack(ready)[1])

    def send(self, request: bytes, *, until: float) -> None:
        """Send a request. `until` is on the monotonic clock; `TimeoutError` after it."""
        try:
            self._wait_until(until)
            self._connection.sendall(request)
        except TimeoutError:
            raise
        except OSError as error:
            raise WorkerEndedError from error

    def reply(self, number: int, *, until: float) -> Reply:
        """The reply to answer `number` of the request. `TimeoutError` after `until`; then it may be asked for again."""
        try:
            self._wait_until(until)
            self._connection.recv(1, socket.MSG_PEEK)  # wait for the first byte only, so that nothing is lost
        except TimeoutError:
            raise
        except OSError as error:
            raise WorkerEndedError from error
        try:
            rest = time.monotonic() + _REST_S
            head = receive_exactly(self._connection, frames.REPLY_BYTES, until=rest)
            told = receive_exactly(self._connection, frames.rest_bytes(head), until=rest)
            reply = frames.read_reply(head + told, expected=number)
        except (OSError, RemoteProtocolError) as error:
            raise WorkerEndedError from error
        self.scored += 1
        return reply

    @property
    def server(self) -> int:
        """Process id of its fork server."""
        return self._server.pid

    def yield_processor(self) -> None:
        """Have the worker leave a busy processor to others: its answer takes long. It cannot be taken back.

        The fork server collects the process only when told to, so its id is not another's by now.
        """
        self.yields = True
        self._server.lower_priority(self._pid)

    def hang_up(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _wait_until(self, until: float) -> None:
        self._connection.settimeout(_seconds_to(until))


def _seconds_to(until: float) -> float:
    return max(_SHORTEST_WAIT_S, until - time.monotonic())


def receive_exactly(connection: socket.socket, count: int, *, until: float) -> bytes:
    """Exactly `count` bytes. `OSError` at the end of the stream or after `until` (monotonic clock)."""
    parts = []
    while count:
        connection.settimeout(_seconds_to(until))
        part = connection.recv(min(count, 1 << 20))
        if not part:
            raise ConnectionResetError("the other end hung up")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
