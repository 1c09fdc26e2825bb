"""Ledger table of a journal: the hash chain of receipts, and of verdicts and their checks."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from p2prl.disk_full import write_error
from p2prl.protocol import ledger_chain
from p2prl.protocol.digests import Digest

SCHEMA = """
CREATE TABLE IF NOT EXISTS ledger (height INTEGER PRIMARY KEY, raw BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS ledger_head (only_row INTEGER PRIMARY KEY CHECK (only_row = 0), raw BLOB NOT NULL);
"""


class LedgerTable:
    """The ledger. Every write belongs inside `transaction`, together with what it records."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._reload()

    @property
    def height(self) -> int:
        """Number of entries."""
        return self._height

    @property
    def head(self) -> Digest:
        """Digest of the newest entry."""
        return self._head

    @contextmanager
    def transaction(self, what: str) -> Iterator[None]:
        """Write to the file all or nothing, with one flush to disk for everything inside; `what` names it in errors."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                if self._db.in_transaction:  # a full disk makes SQLite roll back by itself
                    self._db.execute("ROLLBACK")
                self._reload()
                raise
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise write_error(error, what) from error

    def _reload(self) -> None:
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
