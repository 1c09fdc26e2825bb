"""Settled groups that a volunteer keeps for a while, to replay one when it asks why it earned what it earned.

Tables beside the spool's, in the same database, so a group leaves the spool and enters here in one transaction. Space
belongs to undelivered work first: what is kept here is dropped as soon as that needs it.
"""

from __future__ import annotations

import sqlite3

from p2prl.protocol.ledger_messages import Receipt

KEPT_BYTES = 64 * 1024**2
"""Most bytes of groups kept after their delivery: some 10,000 short groups, or five of the largest."""

KEPT_SHARE = 8
"""They take at most one part in this many of the disk that finished work may take."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS kept (
    digest BLOB PRIMARY KEY, size INTEGER NOT NULL, created REAL NOT NULL, raw BLOB NOT NULL, body BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS receipts (
    digest BLOB PRIMARY KEY,
    step INTEGER NOT NULL,
    sent_ms INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    completions INTEGER NOT NULL,
    reward REAL NOT NULL
);
"""


class KeptGroups:
    """Groups that a learner has stored, and the learner's receipts of them. Raises what `sqlite3` raises."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        db.executescript(_SCHEMA)

    def take(self, digest: bytes) -> None:
        """Copy a group's bytes from the spool, within the transaction that deletes them there."""
        self._db.execute(
            "INSERT OR IGNORE INTO kept SELECT g.digest, LENGTH(g.raw) + COALESCE(b.size, 0), g.created, g.raw,"
            " COALESCE(b.body, zeroblob(0)) FROM groups AS g LEFT JOIN bodies AS b ON b.digest = g.digest"
            " WHERE g.digest = ? AND g.raw IS NOT NULL",
            (digest,),
        )

    def bytes_of(self, digest: bytes) -> tuple[bytes, bytes] | None:
        """The envelope and the body of a kept group."""
        row = self._db.execute("SELECT raw, body FROM kept WHERE digest = ?", (digest,)).fetchone()
        return None if row is None else (bytes(row[0]), bytes(row[1]))

    def note(self, receipt: Receipt, *, step: int, sent_ms: int) -> None:
        """Remember the figures of the learner's receipt of a group; the first one counts."""
        self._db.execute(
            "INSERT OR IGNORE INTO receipts VALUES (?, ?, ?, ?, ?, ?)",
            (receipt.group, step, sent_ms, receipt.tokens, receipt.completions, receipt.reward),
        )

    def trim(self, *, max_bytes: int, undelivered_bytes: float) -> None:
        """Drop groups beyond the bound: verified ones first, nobody asks about them; then the oldest.

        `max_bytes` is the disk for all finished work, of which undelivered groups take `undelivered_bytes`.
        """
        room = max(0.0, min(KEPT_BYTES, max_bytes // KEPT_SHARE, max_bytes - undelivered_bytes))
        excess = self._db.execute("SELECT TOTAL(size) FROM kept").fetchone()[0] - room
        if excess <= 0:
            return
        dropped = []
        for digest, size in self._db.execute(
            "SELECT k.digest, k.size FROM kept AS k JOIN groups AS g ON g.digest = k.digest"
            " ORDER BY g.state = 'verified' DESC, k.created"
        ):
            if excess <= 0:
                break
            dropped.append((digest,))
            excess -= size
        self._db.executemany("DELETE FROM kept WHERE digest = ?", dropped)

    def drop_all(self) -> None:
        """Drop every kept group: the disk is full."""
        self._db.execute("DELETE FROM kept")
