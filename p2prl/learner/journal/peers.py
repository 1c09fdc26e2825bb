"""Journal tables about peers: their slot accounts, the evidence of forgeries, and the statements of owners."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from p2prl.errors import IntegrityError
from p2prl.net.storage.ledger_table import LedgerTable
from p2prl.protocol.ledger_chain import LedgerEntry
from p2prl.protocol.wire_codec import decode

SCHEMA = """
CREATE TABLE IF NOT EXISTS slot_accounts (peer BLOB PRIMARY KEY, account BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS forgeries (
    number INTEGER PRIMARY KEY,
    digest BLOB NOT NULL UNIQUE,
    peer BLOB NOT NULL,
    at REAL NOT NULL,
    envelope BLOB
);
CREATE TABLE IF NOT EXISTS owner_statements (height INTEGER PRIMARY KEY);
"""


class SlotAccountTable:
    """What the learner remembers of each peer's work slots: encoded accounts by public key.

    An account is written in the transaction that stores a group or settles it, so after SIGKILL it is exactly that of
    the groups in the journal. There is one row for each key that has delivered a group, and it is read when the next
    one comes: keys are free, and an account takes no memory. Every write belongs inside `Journal.transaction`.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def read(self, peer: bytes) -> bytes | None:
        """A peer's account, as it was last written."""
        row = self._db.execute("SELECT account FROM slot_accounts WHERE peer = ?", (peer,)).fetchone()
        return None if row is None else bytes(row[0])

    def all(self) -> Iterator[tuple[bytes, bytes]]:
        """(public key, account) of every peer."""
        for peer, account in self._db.execute("SELECT peer, account FROM slot_accounts"):
            yield bytes(peer), bytes(account)

    def write(self, peer: bytes, account: bytes) -> None:
        """Replace a peer's account."""
        self._db.execute("INSERT OR REPLACE INTO slot_accounts (peer, account) VALUES (?, ?)", (peer, account))


MAX_FORGERIES = 65_536
"""Rows: the forgeries of 20,000 keys, 10 MB."""

MAX_EVIDENCE_BYTES = 64 * 1024 * 1024
"""Bytes of all envelopes: a hundred thousand of usual size. Older rows keep their digests and times alone."""


class ForgeryTable:
    """Confirmed forgeries, kept so that anybody can replay them.

    A row is the signed envelope of a group that two replays found forged; a header in it names the body by its hashes.
    Both the rows and their bytes are bounded over all keys; the oldest go first, because keys that forge are free.
    Every write belongs inside `Journal.transaction`.
    """

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


_MAX_ENTRY_BYTES = 4_096
"""An entry with a statement has about 500 bytes."""


class StatementTable:
    """Which ledger entries are statements of owners, for a start. Every write belongs inside `Journal.transaction`."""

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
