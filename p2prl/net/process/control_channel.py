"""The role's end of the socket pair to its network process: sends without blocking, reads in a thread, and an inbox.

What the socket does not accept at once, as the body of a large group, is sent by a thread that ends when all is sent: a
role in a batch of minutes calls nothing here.
"""

from __future__ import annotations

import logging
import queue
import select
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from p2prl.net.process import control
from p2prl.protocol.kinds import Kind
from p2prl.protocol.ledger_chain import OWNERS_STATEMENTS
from p2prl.protocol.signed_group import GROUP_KINDS

log = logging.getLogger("p2prl.net")

_MAX_WAITING_BYTES = 64 * 1024 * 1024
"""Messages queued for a network process that reads none. Past it new ones are dropped: spool and journal resend."""


_DRAIN_WAIT_S = 1.0
"""Longest wait for a socket that accepts nothing, before it is checked again whether anything is left to send."""


class ControlChannel:
    """Messages to and from one network process. A restarted process gets a new channel."""

    def __init__(self, connection: socket.socket, on_message: Callable[[control.FromNetwork | None], None]) -> None:
        """`on_message` gets each message, on the reading thread, and None after the last."""
        self._socket = connection
        self._on_message = on_message
        self._outgoing = bytearray()
        self._sending = threading.Lock()
        self._drains = False
        """Whether a thread sends what is left."""
        self._thread = threading.Thread(target=self._read, name="p2prl-network", daemon=True)
        self._thread.start()

    @property
    def has_waiting(self) -> bool:
        """Whether the network process has not read all messages yet."""
        return bool(self._outgoing)

    def send(self, message: control.ToNetwork) -> None:
        """Queue a message and send as much as the socket accepts now. Thread-safe."""
        if len(self._outgoing) > _MAX_WAITING_BYTES:
            log.warning("the network process reads no messages; one was dropped")
            return
        with self._sending:  # the decoder's thread sends its answers itself
            self._outgoing += control.pack(message)
        self.flush()

    def flush(self) -> None:
        """Send as much as the socket accepts now, without waiting."""
        with self._sending:
            try:
                while self._outgoing:
                    del self._outgoing[: self._socket.send(self._outgoing, socket.MSG_DONTWAIT)]
            except BlockingIOError:
                if not self._drains:
                    self._drains = True
                    threading.Thread(target=self._drain, name="p2prl-control", daemon=True).start()
            except OSError:
                log.debug("network process is gone; %d bytes dropped", len(self._outgoing))
                self._outgoing.clear()

    def _drain(self) -> None:
        """Send what is left as the socket accepts it."""
        while True:
            with self._sending:
                if not self._outgoing:
                    self._drains = False
                    return
            try:
                select.select([], [self._socket], [], _DRAIN_WAIT_S)
            except (OSError, ValueError):  # it was closed meanwhile
                with self._sending:
                    self._outgoing.clear()
            self.flush()

    def hang_up(self, *, timeout_s: float) -> None:
        """Send what is left, waiting at most `timeout_s`, and close the socket: the network process then ends."""
        self.flush()
        if self._outgoing and select.select([], [self._socket], [], timeout_s)[1]:
            self.flush()
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            log.debug("network process was gone already")
        self._socket.close()

    def abandon(self) -> None:
        """Close the socket of a process that has died."""
        self._socket.close()

    def join(self, timeout_s: float) -> None:
        """Wait for the reading thread."""
        self._thread.join(timeout_s)

    def _read(self) -> None:
        try:
            for body in _bodies(self._socket):
                self._on_message(control.parse_from_network(body))
        except OSError as error:
            log.debug("reading from the network process failed: %s", error)
        self._on_message(None)  # in every case: the role must learn that no more messages follow


def _bodies(source: socket.socket) -> Iterable[bytes]:
    with source.makefile("rb") as stream:
        while True:
            header = stream.read(control.LENGTH.size)
            if len(header) < control.LENGTH.size:
                return
            size = control.LENGTH.unpack(header)[0]
            body = stream.read(size)
            if len(body) < size:
                return  # the process died in the middle of a message
            yield body


MAX_UNREAD_BYTES = 64 * 1024 * 1024
"""Bytes of the envelopes of strangers that wait to be read, over all of them: minutes of a busy swarm."""

_OF_STRANGERS = frozenset({*GROUP_KINDS, Kind.VERDICT, Kind.COUNTERSIGNATURE, *OWNERS_STATEMENTS})
"""Kinds of envelopes that any key may sign, by the byte after the array's head."""

Other = TypeVar("Other")


class Inbox(Generic[Other]):
    """What the network process has reported and the role has not read yet, in order. Any thread may put; one reads.

    A role may be in a batch that takes minutes, while the network process goes on. What the learner or this node says
    is little. What strangers send is bounded: groups are offered or sent again, and a validator takes a sample anyway.
    """

    def __init__(self) -> None:
        self._messages: queue.SimpleQueue[control.FromNetwork | Other] = queue.SimpleQueue()
        self._changing = threading.Lock()
        self._unread_bytes = 0

    def __len__(self) -> int:
        return self._messages.qsize()

    def put(self, message: control.FromNetwork | Other) -> None:
        """Add a message; an envelope of a stranger is dropped when there is no room for it."""
        size_bytes = _bounded_bytes(message)
        with self._changing:
            if size_bytes and self._unread_bytes + size_bytes > MAX_UNREAD_BYTES:
                return
            self._unread_bytes += size_bytes
        self._messages.put(message)

    def get(self, timeout_s: float = 0.0) -> control.FromNetwork | Other:
        """The oldest message. Raises `queue.Empty` when none has come after `timeout_s`."""
        message = self._messages.get(timeout=timeout_s) if timeout_s > 0 else self._messages.get_nowait()
        with self._changing:
            self._unread_bytes -= _bounded_bytes(message)
        return message


def _bounded_bytes(message: object) -> int:
    """Bytes of a stranger's envelope; 0 for every other message."""
    if not isinstance(message, control.EnvelopeArrived) or message.envelope[1] not in _OF_STRANGERS:
        return 0
    return len(message.envelope)
