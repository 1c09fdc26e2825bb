"""Detection of another process that uses this peer's key, as after copying a home folder to a second machine. Pure.

Peers keep one link per key, so two processes with one key cut each other off, and the second one would only see that
no peer answers. The directory reveals it: it has a record that our key signed since our start, but this process did
not write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from p2prl.errors import RemoteProtocolError, StaleWorkError
from p2prl.protocol.envelope import open_envelope
from p2prl.protocol.identity import PeerId

_OWN_RECORDS_KEPT = 64
"""Our newest records: the directory keeps one for minutes and we write one every three seconds at most."""


class KeyUse:
    """Compares the directory's record under our key with the records this process wrote."""

    def __init__(self, peer: PeerId, now: float, on_shared: Callable[[], None]) -> None:
        """`now` is our start, Unix seconds. `on_shared` is called once, when another process is found."""
        self._peer = peer
        self._started_ms = now * 1000
        self._on_shared = on_shared
        self._is_shared = False
        self._own: dict[bytes, None] = {}

    def wrote(self, record: bytes) -> None:
        """Remember a record this process writes to the directory."""
        self._own[record] = None
        if len(self._own) > _OWN_RECORDS_KEPT:
            del self._own[next(iter(self._own))]

    def read(self, records: Mapping[PeerId, bytes]) -> None:
        """Check records read from the directory."""
        record = records.get(self._peer)
        if self._is_shared or record is None or record in self._own:
            return
        try:
            self._is_shared = open_envelope(record, now=None).sent_ms > self._started_ms
        except (RemoteProtocolError, StaleWorkError):
            return
        if self._is_shared:
            self._on_shared()
