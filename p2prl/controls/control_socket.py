"""The control socket: a Unix socket in the worker's folder that only its owner can open, and the requests over it.

The worker binds it before it is confined, and may accept on it afterwards and on nothing else. It reads one bounded
line and answers one. Peer credentials are checked at both ends: file modes alone depend on the folder's.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from p2prl.controls.messages import (
    MOST_ANSWER_BYTES,
    MOST_REQUEST_BYTES,
    Answer,
    Request,
    encode_line,
    read_answer,
    read_request,
)
from p2prl.errors import MachineError, RemoteProtocolError

NAME = "control"
"""Of the socket, in the worker's folder."""

REQUEST_S = 0.5
"""How long a client may take to send its line: limits are decided once a second by the same thread."""

ANSWER_S = 5.0
"""How long a worker may take to answer on a busy machine."""

_BACKLOG = 8
"""Clients that wait: an owner's terminals."""

_MOST_PATH_BYTES = 100
"""Of a socket's name in the kernel (104 on macOS, 108 on Linux); longer ones go through the folder's descriptor."""


class ControlSocket:
    """A worker's end."""

    def __init__(self, folder: Path) -> None:
        """Bind it, replacing one that a killed worker left; the caller holds the folder's lock.

        `MachineError` where the folder's file system has no sockets or the path is too long for this system.
        """
        self._path = folder / NAME
        with suppress(FileNotFoundError):
            self._path.unlink()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            with _short_path(folder) as path:
                self._socket.bind(path)
            self._socket.listen(_BACKLOG)
        except OSError as error:
            self._socket.close()
            raise MachineError(
                f"no control socket in {folder}: {error.strerror or error}",
                remedy="Give a folder with a shorter path, or on another disk, with --home.",
            ) from error
        finally:
            os.umask(before)

    def fileno(self) -> int:
        """Descriptor of the listening socket."""
        return self._socket.fileno()

    def serve(self, timeout_s: float, answer: Callable[[Request], Answer]) -> bool:
        """Answer one client that is there within `timeout_s`. False when none came."""
        self._socket.settimeout(timeout_s)
        try:
            client, _ = self._socket.accept()
        except TimeoutError:
            return False
        except OSError:
            time.sleep(timeout_s)  # no descriptor left, or a system that refuses it: never a busy loop
            return False
        with client, suppress(OSError):
            client.settimeout(REQUEST_S)
            if peer_user(client) != os.geteuid():
                return True
            try:
                request = read_request(_read_line(client, MOST_REQUEST_BYTES, REQUEST_S))
            except RemoteProtocolError as error:
                reply = Answer(error=str(error), remedy="Use the p2prl of the version that runs here.")
            else:
                reply = answer(request)
            client.sendall(encode_line(reply))
        return True

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()
        with suppress(OSError):
            self._path.unlink()


def ask(folder: Path, request: Request) -> Answer | None:
    """The answer of the worker that runs in a folder; None when none listens there.

    `MachineError` when it does not answer in time or is another user's; `RemoteProtocolError` when it answers nonsense.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        channel.settimeout(ANSWER_S)
        try:
            with _short_path(folder) as path:
                channel.connect(path)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            return None
        except OSError as error:
            raise MachineError(
                f"the worker of {folder} cannot be reached: {error.strerror or error}",
                remedy="Run this as the user who started it.",
            ) from error
        if peer_user(channel) != os.geteuid():
            raise MachineError(
                f"the worker of {folder} belongs to another user", remedy="Run this as the user who started it."
            )
        try:
            channel.sendall(encode_line(request))
            return read_answer(_read_line(channel, MOST_ANSWER_BYTES, ANSWER_S))
        except OSError as error:
            raise MachineError(
                f"the worker of {folder} does not answer", remedy="Try again in a moment, or stop it with Ctrl-C."
            ) from error


def peer_user(channel: socket.socket) -> int:
    """User id of the process at the other end, by the kernel; −1 where the system does not tell."""
    if sys.platform == "darwin":
        local, peer_credentials = 0, 1  # SOL_LOCAL, LOCAL_PEERCRED: struct xucred, version and user id first
        data = channel.getsockopt(local, peer_credentials, 76)
        return int(struct.unpack_from("2I", data)[1])
    if sys.platform != "linux":
        return -1
    data = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", data)[1])


def _read_line(channel: socket.socket, most_bytes: int, seconds: float) -> bytes:
    """One line without its end. `RemoteProtocolError` when it is too long or cut off, `OSError` when it is late."""
    until = time.monotonic() + seconds
    data = b""
    while b"\n" not in data:
        channel.settimeout(max(1e-3, until - time.monotonic()))
        part = channel.recv(4096)
        if not part or len(data) + len(part) > most_bytes + 1:
            raise RemoteProtocolError("a control message is cut off" if not part else "a control message is too long")
        data += part
    return data.partition(b"\n")[0]


@contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """A name for the socket that fits the kernel's field."""
    path = str(folder / NAME)
    if len(os.fsencode(path)) <= _MOST_PATH_BYTES or sys.platform != "linux":
        yield path
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{NAME}"
    finally:
        os.close(descriptor)
