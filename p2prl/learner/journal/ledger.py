"""Ledger tables of the journal: the hash chain of receipts and verdicts, and the verdicts that wait for a receipt."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from p2prl.learner.journal.groups import GroupState
from p2prl.protocol import ledger_chain
from p2prl.protocol.digests import Digest
from p2prl.protocol.ledger_messages import Verdict

VERDICTS_PER_VERSION = 4_096
"""Verdicts of one validator on one version's groups that enter the ledger: more than the groups a busy learner receives
per version, so a validator may replay everything, and none can fill the disk."""

VERDICTS_PER_GROUP = 16
"""Verdicts on one group that enter the ledger, from all validators together. Keys are free, so a quota per key bounds
nothing by itself; after this many independent replays another one adds nothing."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS ledger (height INTEGER PRIMARY KEY, raw BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS ledger_head (only_row INTEGER PRIMARY KEY CHECK (only_row = 0), raw BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS audits (
    validator BLOB NOT NULL,
    digest BLOB NOT NULL,
    version INTEGER NOT NULL,
    waiting BLOB,
    PRIMARY KEY (validator, digest)
);
CREATE INDEX IF NOT EXISTS audits_version ON audits (validator, version);
CREATE INDEX IF NOT EXISTS audits_group ON audits (digest);
CREATE INDEX IF NOT EXISTS audits_waiting ON audits (digest) WHERE waiting IS NOT NULL;
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

    def add_verdict(self, verdict: Verdict, validator: bytes, envelope: bytes) -> bool:
        """Record a validator's verdict on a stored group, once and within the quotas. False when it was not recorded.

        It enters the ledger at once if the group has its receipt, else with `release_verdicts`.
        """
        row = self._db.execute("SELECT peer, version, state FROM groups WHERE digest = ?", (verdict.group,)).fetchone()
        if row is None or (bytes(row[0]), int(row[1])) != (verdict.peer, verdict.version):
            return False
        (by_validator,) = self._db.execute(
            "SELECT COUNT(*) FROM audits WHERE validator = ? AND version = ?", (validator, verdict.version)
        ).fetchone()
        (on_group,) = self._db.execute("SELECT COUNT(*) FROM audits WHERE digest = ?", (verdict.group,)).fetchone()
        if by_validator >= VERDICTS_PER_VERSION or on_group >= VERDICTS_PER_GROUP:
            return False
        waiting = envelope if row[2] == GroupState.STORED else None
        added = self._db.execute(
            "INSERT OR IGNORE INTO audits (validator, digest, version, waiting) VALUES (?, ?, ?, ?)",
            (validator, verdict.group, verdict.version, waiting),
        ).rowcount
        if added and waiting is None:
            self.append(envelope)
        return bool(added)

    def release_verdicts(self, digests: Iterable[bytes]) -> None:
        """Append the verdicts that waited for these groups' receipts, which are in the ledger now."""
        for digest in digests:
            waiting = self._db.execute(
                "SELECT rowid, waiting FROM audits WHERE digest = ? AND waiting IS NOT NULL ORDER BY rowid", (digest,)
            ).fetchall()
            for rowid, envelope in waiting:
                self.append(bytes(envelope))
                self._db.execute("UPDATE audits SET waiting = NULL WHERE rowid = ?", (rowid,))
