"""Slot accounts table of the journal: what the learner remembers of each peer's work slots.

An account is written in the transaction that stores a group or settles it, so after SIGKILL it is exactly that of the
groups in the journal. There is one row for each key that has delivered a group, and it is read when the next one comes:
keys are free, and none of them takes any memory.
"""

from __future__ import annotations

import sqlite3

SCHEMA = "CREATE TABLE IF NOT EXISTS slot_accounts (peer BLOB PRIMARY KEY, account BLOB NOT NULL) WITHOUT ROWID;"


class SlotAccountTable:
    """Encoded accounts by public key. Every write belongs inside `Journal.transaction`."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def read(self, peer: bytes) -> bytes | None:
        """A peer's account, as it was last written."""
        row = self._db.execute("SELECT account FROM slot_accounts WHERE peer = ?", (peer,)).fetchone()
        return None if row is None else bytes(row[0])

    def write(self, peer: bytes, account: bytes) -> None:
        """Replace a peer's account."""
        self._db.execute("INSERT OR REPLACE INTO slot_accounts (peer, account) VALUES (?, ?)", (peer, account))
