"""A board's own copy of the ledger on disk: entries, signed heads, the run manifest and incidents in SQLite.

The copy is a cache of public data. It is verified again from its first entry whenever it is opened, so neither a crash
nor an edited file can put a wrong number on the page; entries that fail are dropped and downloaded again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from p2prl.databases import open_database
from p2prl.disk_full import write_error
from p2prl.errors import ConfigError, MachineError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS ledger (height INTEGER PRIMARY KEY, raw BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS heads (height INTEGER PRIMARY KEY, raw BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS manifest (run BLOB PRIMARY KEY, raw BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS incidents (message TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS proofs (raw BLOB PRIMARY KEY);
CREATE TABLE IF NOT EXISTS countersignatures (author BLOB PRIMARY KEY, height INTEGER NOT NULL, raw BLOB NOT NULL);
"""

_HEADS_KEPT = 64
"""Signed heads on disk; the newest proves everything below it, the rest serve comparisons with another board."""


class LedgerStore:
    """A board's own SQLite file. One thread at a time may use it."""

    def __init__(self, path: Path, *, run: bytes) -> None:
        """Open or create; `run` is the run's digest. Raises `MachineError`, or `ConfigError` for another run's file."""
        try:
            # Losing the last pages to a power cut only refetches them.
            self._db = open_database(path, synchronous="NORMAL", check_same_thread=False)
            self._db.executescript(_SCHEMA)
            row = self._db.execute("SELECT run FROM manifest").fetchone()
        except (OSError, sqlite3.Error) as error:
            raise MachineError(
                f"cannot open the board's ledger {path}: {error}",
                remedy="Free some space or fix the directory's permissions; the file is a copy and may be deleted.",
            ) from error
        self._run = run
        self._size_bytes: int | None = None
        if row is not None and bytes(row[0]) != run:
            self._db.close()
            raise ConfigError(
                f"{path} holds the ledger of another run",
                remedy="Use another folder for this board, or delete the file.",
            )

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @property
    def manifest(self) -> bytes:
        """The run manifest's envelope; empty when it has not arrived yet."""
        row = self._db.execute("SELECT raw FROM manifest").fetchone()
        return b"" if row is None else bytes(row[0])

    def keep_manifest(self, raw: bytes) -> None:
        """Store the run manifest's envelope."""
        self._write("INSERT OR IGNORE INTO manifest (run, raw) VALUES (?, ?)", [(self._run, raw)])

    @property
    def size_bytes(self) -> int:
        """Bytes of all stored entries."""
        if self._size_bytes is None:
            self._size_bytes = self._bytes_from(0)
        return self._size_bytes

    @property
    def height(self) -> int:
        """Entries stored."""
        return int(self._db.execute("SELECT COALESCE(MAX(height) + 1, 0) FROM ledger").fetchone()[0])

    def append(self, height: int, entries: Sequence[bytes]) -> None:
        """Store verified entries, the first of them at `height`."""
        size_bytes = self.size_bytes + sum(map(len, entries))
        self._write("INSERT INTO ledger (height, raw) VALUES (?, ?)", list(enumerate(entries, height)))
        self._size_bytes = size_bytes

    def truncate(self, height: int) -> None:
        """Delete the entries from `height` on."""
        size_bytes = self.size_bytes - self._bytes_from(height)
        self._write("DELETE FROM ledger WHERE height >= ?", [(height,)])
        self._size_bytes = size_bytes

    def entries(self, from_height: int, limit: int) -> list[bytes]:
        """Consecutive entries from a height on."""
        return read_entries(self._db, from_height, limit)

    def keep_head(self, height: int, raw: bytes) -> None:
        """Store a signed head that matches this chain; of several at one height the newest is kept."""
        self._write("INSERT OR REPLACE INTO heads (height, raw) VALUES (?, ?)", [(height, raw)])
        oldest = "SELECT height FROM heads ORDER BY height DESC LIMIT 1 OFFSET ?"
        self._write(f"DELETE FROM heads WHERE height <= ({oldest})", [(_HEADS_KEPT,)])  # noqa: S608 - constants only

    def heads(self) -> list[bytes]:
        """Stored signed heads, lowest first."""
        return [bytes(row[0]) for row in self._db.execute("SELECT raw FROM heads ORDER BY height")]

    def keep_countersignature(self, author: bytes, height: int, raw: bytes) -> None:
        """Store the newest countersignature of an author."""
        self._write("INSERT OR REPLACE INTO countersignatures VALUES (?, ?, ?)", [(author, height, raw)])

    def drop_countersignature(self, author: bytes) -> None:
        """Delete an author's countersignature."""
        self._write("DELETE FROM countersignatures WHERE author = ?", [(author,)])

    def countersignatures(self) -> list[tuple[bytes, int, bytes]]:
        """Author, height and envelope of the stored countersignatures, those of the greatest heights first."""
        rows = self._db.execute("SELECT author, height, raw FROM countersignatures ORDER BY height DESC, author")
        return [(bytes(author), int(height), bytes(raw)) for author, height, raw in rows]

    def keep_incident(self, message: str, *proofs: bytes) -> None:
        """Store permanently why the ledger cannot be trusted, and the first incident's signed proofs."""
        if self.incident is None:
            self._write("INSERT OR IGNORE INTO proofs (raw) VALUES (?)", [(proof,) for proof in proofs])
        self._write("INSERT OR IGNORE INTO incidents (message) VALUES (?)", [(message,)])

    @property
    def proofs(self) -> list[bytes]:
        """Envelopes that prove the first incident to anybody."""
        return [bytes(row[0]) for row in self._db.execute("SELECT raw FROM proofs ORDER BY rowid")]

    @property
    def incident(self) -> str | None:
        """The first incident stored."""
        row = self._db.execute("SELECT message FROM incidents ORDER BY rowid LIMIT 1").fetchone()
        return None if row is None else str(row[0])

    def _bytes_from(self, height: int) -> int:
        return int(self._db.execute("SELECT TOTAL(LENGTH(raw)) FROM ledger WHERE height >= ?", (height,)).fetchone()[0])

    def _write(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(statement, rows)
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise write_error(error, "the board's ledger") from error


def read_entries(db: sqlite3.Connection, from_height: int, limit: int) -> list[bytes]:
    """Consecutive rows of a `ledger` table from a height on."""
    query = "SELECT height, raw FROM ledger WHERE height >= ? ORDER BY height LIMIT ?"
    rows = db.execute(query, (from_height, limit)).fetchall()
    # Stop at a missing row: the entries after it cannot be verified.
    return [bytes(raw) for place, (height, raw) in enumerate(rows, from_height) if height == place]
