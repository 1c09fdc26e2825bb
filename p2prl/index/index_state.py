"""State of an index server: the table of listings behind a lock, its answer while they are unchanged, and people."""

from __future__ import annotations

import threading

import msgspec

from p2prl.clock import Clock
from p2prl.index.index_documents import runs_document
from p2prl.index.listing_table import Kept, ListingTable, Row, TableLimits
from p2prl.index.people_state import PeopleState
from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import PeerId
from p2prl.swarm.peers.subnets import Subnet


class IndexState:
    """The table, for threads that handle requests and one that mirrors."""

    def __init__(
        self, clock: Clock, limits: TableLimits | None = None, *, owners: frozenset[PeerId] = frozenset()
    ) -> None:
        """`owners` are those whose runs count in the sums over people."""
        self._clock = clock
        self._lock = threading.Lock()
        self._table = ListingTable(limits)
        self._answer: tuple[int, bytes] = (-1, b"")
        self.people = PeopleState(clock, owners)
        self.mirrors: dict[str, str] = {}
        """Mirrored indexes, and `ok` or why the newest look at them failed."""

    def offer(self, raw: bytes, manifest: bytes, source: Subnet) -> Kept:
        """Take a listing, as `ListingTable.offer` does."""
        with self._lock:
            return self._table.offer(raw, manifest, source=source, now=self._clock.now())

    def rows(self) -> tuple[Row, ...]:
        """The listings now."""
        with self._lock:
            return self._table.rows(self._clock.now())

    def manifest(self, run: Digest) -> bytes | None:
        """The manifest of a listed run."""
        with self._lock:
            return self._table.manifest(run)

    def runs_json(self) -> bytes:
        """The document of all listings. It is encoded once for each change of them."""
        with self._lock:
            rows, changes = self._table.rows(self._clock.now()), self._table.changes
            if changes == self._answer[0]:
                return self._answer[1]
        answer = msgspec.json.encode(runs_document(rows))  # outside: a large one must not hold up the others
        with self._lock:
            self._answer = (changes, answer)
        return answer
