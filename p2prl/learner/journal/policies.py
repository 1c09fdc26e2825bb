"""Policies table of the journal: every policy manifest the learner signed, kept before it is published.

No second manifest is ever signed for a version, and a version stays recognizable long after its weights are gone.
"""

from __future__ import annotations

import sqlite3

from p2prl.protocol.envelope import envelope_digest

SCHEMA = """
CREATE TABLE IF NOT EXISTS policies (version INTEGER PRIMARY KEY, step INTEGER NOT NULL, raw BLOB NOT NULL);
"""


class PolicyTable:
    """Signed policy manifests. Every write belongs inside `Journal.transaction`."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def add(self, version: int, step: int, raw: bytes) -> None:
        """Keep a signed manifest before it is published. Fails when the version has one already."""
        self._db.execute("INSERT INTO policies (version, step, raw) VALUES (?, ?, ?)", (version, step, raw))

    def at_step(self, step: int) -> bytes | None:
        """The manifest envelope published at a step, if any."""
        row = self._db.execute("SELECT raw FROM policies WHERE step = ?", (step,)).fetchone()
        return None if row is None else bytes(row[0])

    def was_published(self, version: int, digest: bytes) -> bool:
        """Whether this exact manifest was ever published under this version."""
        row = self._db.execute("SELECT raw FROM policies WHERE version = ?", (version,)).fetchone()
        return row is not None and envelope_digest(bytes(row[0])) == digest

    def since_step(self, step: int) -> list[bytes]:
        """Manifest envelopes published at or after a step, and always the newest; oldest first.

        With a staleness bound shorter than the publish interval the newest may be older than the window, and the next
        version must still follow it.
        """
        rows = self._db.execute(
            "SELECT raw FROM policies WHERE step >= ? OR version = (SELECT MAX(version) FROM policies)"
            " ORDER BY version",
            (step,),
        )
        return [bytes(row[0]) for row in rows]

    def count(self) -> int:
        """Number of versions published."""
        return int(self._db.execute("SELECT COUNT(*) FROM policies").fetchone()[0])
