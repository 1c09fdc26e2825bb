"""Ledger table of the journal: the hash chain of receipts, verdicts and their checks."""

from __future__ import annotations

import sqlite3

from p2prl.protocol import ledger_chain
from p2prl.protocol.digests import Digest

SCHEMA = """
CREATE TABLE IF NOT EXISTS ledger (height INTEGER PRIMARY KEY, raw BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS ledger_head (only_row INTEGER PRIMARY KEY CHECK (only_row = 0), raw BLOB NOT NULL);
"""


class LedgerTable:
    """The ledger. Every write belongs inside `Journal.transaction`, together with what it records."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self.reload()

    @property
    def height(self) -> int:
        """Number of entries."""
        return self._height

    @property
    def head(self) -> Digest:
        """Digest of the newest entry."""
        return self._head

    def reload(self) -> None:
        """Read height and head from disk again, after a transaction was rolled back."""
        row = self._db.execute("SELECT height, raw FROM ledger ORDER BY height DESC LIMIT 1").fetchone()
        self._height, self._head = 0, ledger_chain.GENESIS
        if row is not None:
            self._height, self._head = int(row[0]) + 1, ledger_chain.entry_digest(bytes(row[1]))

    def append(self, envelope: bytes) -> None:
        """Add one signed envelope to the chain."""
        raw, head = ledger_chain.append(self._height, self._head, envelope)
        self._db.execute("INSERT INTO ledger (height, raw) VALUES (?, ?)", (self._height, raw))
        self._height, self._head = self._height + 1, head

    def keep_head(self, envelope: bytes) -> None:
        """Keep the newest signed head, for readers of this file: a ledger without one may have been cut short."""
        self._db.execute("INSERT OR REPLACE INTO ledger_head (only_row, raw) VALUES (0, ?)", (envelope,))

    def entries(self, from_height: int, limit: int) -> list[bytes]:
        """Entries from a height on."""
        rows = self._db.execute(
            "SELECT raw FROM ledger WHERE height >= ? ORDER BY height LIMIT ?", (from_height, limit)
        )
        return [bytes(row[0]) for row in rows]
