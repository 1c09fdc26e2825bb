"""Inbox of a role: what its network process has reported and the role has not read yet.

A role may be in a batch that takes minutes, while the network process goes on. What the learner or this node says is
little. What strangers send is bounded: groups are offered or sent again, and a validator takes a sample anyway.
"""

from __future__ import annotations

import queue
import threading
from typing import Generic, TypeVar

from p2prl.net.process import control
from p2prl.protocol.kinds import Kind
from p2prl.protocol.ledger_chain import OWNERS_STATEMENTS
from p2prl.protocol.signed_group import GROUP_KINDS

MAX_UNREAD_BYTES = 64 * 1024 * 1024
"""Bytes of the envelopes of strangers that wait to be read, over all of them: minutes of a busy swarm."""

_OF_STRANGERS = frozenset({*GROUP_KINDS, Kind.VERDICT, Kind.COUNTERSIGNATURE, *OWNERS_STATEMENTS})
"""Kinds of envelopes that any key may sign, by the byte after the array's head."""

Other = TypeVar("Other")


class Inbox(Generic[Other]):
    """Messages in order. Any thread may put; one reads."""

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
