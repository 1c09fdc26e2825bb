"""Forgeries table of the journal: evidence of confirmed forgeries, kept so that anybody can replay it.

A row is the signed envelope of a group that two replays found forged; a header in it names the body by its hashes. Both
the rows and their bytes are bounded over all keys; the oldest go first, because keys that forge are free.
"""

from __future__ import annotations

import sqlite3

MAX_FORGERIES = 65_536
"""Rows: the forgeries of 20,000 keys, 10 MB."""

MAX_EVIDENCE_BYTES = 64 * 1024 * 1024
"""Bytes of all envelopes: a hundred thousand of usual size. Older rows keep their digests and times alone."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS forgeries (
    number INTEGER PRIMARY KEY,
    digest BLOB NOT NULL UNIQUE,
    peer BLOB NOT NULL,
    at REAL NOT NULL,
    envelope BLOB
);
"""


class ForgeryTable:
    """Confirmed forgeries. Every write belongs inside `Journal.transaction`."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def add(self, digest: bytes, peer: bytes, at: float, *, envelope: bytes) -> None:
        """Keep the evidence of a forgery."""
        self._db.execute(
            "INSERT OR IGNORE INTO forgeries (digest, peer, at, envelope) VALUES (?, ?, ?, ?)",
            (digest, peer, at, envelope),
        )
        self._db.execute(
            "DELETE FROM forgeries WHERE number <= (SELECT MAX(number) FROM forgeries) - ?", (MAX_FORGERIES,)
        )
        self._db.execute(
            "UPDATE forgeries SET envelope = NULL WHERE envelope IS NOT NULL AND number IN (SELECT number FROM"
            " (SELECT number, SUM(LENGTH(envelope)) OVER (ORDER BY number DESC) AS newer FROM forgeries)"
            " WHERE newer > ?)",
            (MAX_EVIDENCE_BYTES,),
        )

    def times(self) -> list[tuple[bytes, float]]:
        """(peer, Unix time) of each forgery, in order."""
        return [(bytes(peer), at) for peer, at in self._db.execute("SELECT peer, at FROM forgeries ORDER BY number")]

    def evidence(self, peer: bytes) -> list[bytes]:
        """Envelopes of the forgeries of a peer, as far as they are kept, oldest first."""
        rows = self._db.execute(
            "SELECT envelope FROM forgeries WHERE peer = ? AND envelope IS NOT NULL ORDER BY number", (peer,)
        )
        return [bytes(row[0]) for row in rows]
