"""Detection of another process that uses this peer's key, as after copying a home folder to a second machine. Pure.

Peers keep one link per key, so two processes with one key cut each other off, and both would sample the same work
slots. The directory reveals it: it has a record that our key signed since our start, by a process that started at
another time than this one. The one that started later stops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from p2prl.errors import RemoteProtocolError, StaleWorkError
from p2prl.protocol.envelope import body_of, open_envelope
from p2prl.protocol.identity import PeerId
from p2prl.protocol.peer_messages import PeerRecord

GRACE_S = 15.0
"""A record signed sooner after our start may be the last one of our own earlier process, which was still ending."""


class KeyUse:
    """Compares the directory's record under our key with this process's start."""

    def __init__(self, peer: PeerId, now: float, on_shared: Callable[[bool], None]) -> None:
        """`now` is our start, Unix seconds, as in the node's records. `on_shared` is called once, when another process
        is found; its argument says whether this one started later and has to stop."""
        self._peer = peer
        self._started_ms = int(now * 1000)
        self._on_shared = on_shared
        self._is_shared = False

    def read(self, records: Mapping[PeerId, Iterable[bytes]]) -> None:
        """Check the records that the directory has of each peer."""
        for raw in records.get(self._peer, ()):
            self._check(raw)

    def _check(self, raw: bytes) -> None:
        if self._is_shared:
            return
        try:
            opened = open_envelope(raw, now=None)
            record = body_of(opened, PeerRecord)
        except (RemoteProtocolError, StaleWorkError):
            return
        is_alive = opened.sent_ms >= self._started_ms + GRACE_S * 1000
        if is_alive and record.started_ms != self._started_ms:
            self._is_shared = True
            self._on_shared(record.started_ms < self._started_ms)
