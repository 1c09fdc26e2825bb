"""Statements table of the journal: which ledger entries are statements of owners, for a start."""

from __future__ import annotations

import sqlite3

from p2prl.errors import IntegrityError
from p2prl.net.storage.ledger_table import LedgerTable
from p2prl.protocol.ledger_chain import LedgerEntry
from p2prl.protocol.wire_codec import decode

SCHEMA = """
CREATE TABLE IF NOT EXISTS owner_statements (height INTEGER PRIMARY KEY);
"""

_MAX_ENTRY_BYTES = 4_096
"""An entry with a statement has about 500 bytes."""


class StatementTable:
    """Statements in the ledger. Every write belongs inside `Journal.transaction`."""

    def __init__(self, db: sqlite3.Connection, ledger: LedgerTable) -> None:
        self._db = db
        self._ledger = ledger

    def append(self, envelope: bytes) -> None:
        """Append the envelope of a statement to the ledger."""
        self._db.execute("INSERT INTO owner_statements (height) VALUES (?)", (self._ledger.height,))
        self._ledger.append(envelope)

    def envelopes(self) -> list[bytes]:
        """All statements in the ledger, in its order. Raises `IntegrityError` when the journal is damaged."""
        rows = self._db.execute(
            "SELECT s.height, l.raw FROM owner_statements AS s LEFT JOIN ledger AS l ON l.height = s.height"
            " ORDER BY s.height"
        ).fetchall()
        if any(raw is None for _, raw in rows):
            raise IntegrityError("the journal lacks a ledger entry", remedy="Restore journal.db from a copy.")
        return [decode(bytes(raw), LedgerEntry, limit_bytes=_MAX_ENTRY_BYTES).envelope for _, raw in rows]

    def has_work(self, peer: bytes) -> bool:
        """Whether a group of a peer passed its checks, or a verdict of it: each costs at least a forward pass."""
        row = self._db.execute(
            "SELECT 1 FROM groups WHERE peer = ? AND state IN ('verified', 'used', 'unused')"
            " UNION ALL SELECT 1 FROM validators WHERE validator = ? AND passed > 0 LIMIT 1",
            (peer, peer),
        ).fetchone()
        return row is not None
