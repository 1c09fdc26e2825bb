"""The learner's memory on disk: groups, batches, published policies and the ledger, in one SQLite file.

Everything the learner promises is here before it is said: a group before its storage receipt, a batch before its
update, a manifest before it is published, a receipt before it is gossiped. After SIGKILL the updates since the last
checkpoint are replayed from the recorded batches, so training resumes at the exact step with the same parameters, no
group is used twice, and no second manifest is ever signed for a version.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from p2prl.disk_full import write_error
from p2prl.errors import MachineError
from p2prl.protocol import ledger_chain
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import envelope_digest
from p2prl.protocol.ledger_messages import Verdict

VERDICTS_PER_VERSION = 4_096
"""Verdicts of one validator on one version's groups that enter the ledger: above what a version's window brings to a
busy learner, so that a validator that replays everything is heard out, and none fills the disk."""

VERDICTS_PER_GROUP = 16
"""Verdicts on one group that enter the ledger, whoever signed them. Keys are free, so a quota of each key bounds
nothing by itself; past this many independent replays another one says nothing new."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS groups (
    digest BLOB PRIMARY KEY,
    peer BLOB NOT NULL,
    version INTEGER NOT NULL,
    slot INTEGER NOT NULL,
    raw BLOB,
    arrived REAL NOT NULL,
    state TEXT NOT NULL DEFAULT 'stored',
    reason TEXT NOT NULL DEFAULT '',
    behavior BLOB,
    rewards BLOB,
    used_step INTEGER
);
CREATE INDEX IF NOT EXISTS groups_state ON groups (state, arrived);
CREATE INDEX IF NOT EXISTS groups_waiting ON groups (state, peer, arrived);
CREATE INDEX IF NOT EXISTS groups_slot ON groups (peer, version, slot);
CREATE TABLE IF NOT EXISTS batches (step INTEGER PRIMARY KEY, digests BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS policies (version INTEGER PRIMARY KEY, step INTEGER NOT NULL, raw BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS ledger (height INTEGER PRIMARY KEY, raw BLOB NOT NULL);
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


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group row: the envelope, and once verified the learner's own log-probs and rewards."""

    digest: Digest
    peer: bytes
    version: int
    slot: int
    raw: bytes
    behavior: bytes
    """Little-endian float32 log-probs at the declared version, completions concatenated; empty until verified."""
    rewards: bytes
    """Little-endian float32, one per completion; empty until verified."""


class Journal:
    """One run's journal. One process writes it."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(_SCHEMA)
            self._height, self._head = self._read_head()
        except (OSError, sqlite3.Error) as error:
            raise MachineError(
                f"cannot open the journal {path}: {error}", remedy="Free some space or fix the directory's permissions."
            ) from error

    def close(self) -> None:
        """Close the database; everything is already on disk."""
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, and one flush to disk for everything inside."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                if self._db.in_transaction:  # a full disk makes SQLite roll back by itself
                    self._db.execute("ROLLBACK")
                self._height, self._head = self._read_head()
                raise
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise write_error(error, "the journal") from error

    # --- groups ------------------------------------------------------------------------------------------------

    def store(self, group: StoredGroup, now: float) -> bool:
        """Keep an arrived group; False when it was here already."""
        cursor = self._db.execute(
            "INSERT OR IGNORE INTO groups (digest, peer, version, slot, raw, arrived) VALUES (?, ?, ?, ?, ?, ?)",
            (group.digest, group.peer, group.version, group.slot, group.raw, now),
        )
        return cursor.rowcount > 0

    def slot_taken(self, peer: bytes, version: int, slot: int, *, by_other_than: bytes) -> bool:
        """Whether another envelope already stands for this slot and was not rejected."""
        row = self._db.execute(
            "SELECT 1 FROM groups WHERE peer = ? AND version = ? AND slot = ? AND digest != ?"
            " AND state IN ('verified', 'used') LIMIT 1",
            (peer, version, slot, by_other_than),
        ).fetchone()
        return row is not None

    def in_state(self, state: str, limit: int) -> list[StoredGroup]:
        """Groups of a state in order of arrival."""
        rows = self._db.execute(
            "SELECT digest, peer, version, slot, raw, behavior, rewards FROM groups WHERE state = ?"
            " ORDER BY arrived, rowid LIMIT ?",
            (state, limit),
        )
        return [_group(row) for row in rows]

    def unchecked(self, limit: int) -> list[StoredGroup]:
        """Stored groups, every peer's oldest before anybody's second: a flood of one delays nobody else."""
        rows = self._db.execute(
            "SELECT g.digest, g.peer, g.version, g.slot, g.raw, g.behavior, g.rewards FROM"
            " (SELECT rowid AS id, arrived, ROW_NUMBER() OVER (PARTITION BY peer ORDER BY arrived, rowid) AS turn"
            " FROM groups WHERE state = 'stored') AS q JOIN groups AS g ON g.rowid = q.id"
            " ORDER BY q.turn, q.arrived, q.id LIMIT ?",
            (limit,),
        )
        return [_group(row) for row in rows]

    def unchecked_of(self, peer: bytes) -> int:
        """Stored groups of a peer."""
        row = self._db.execute("SELECT COUNT(*) FROM groups WHERE state = 'stored' AND peer = ?", (peer,)).fetchone()
        return int(row[0])

    def knows(self, digest: bytes) -> bool:
        """Whether a group was taken in, whatever became of it."""
        return self._db.execute("SELECT 1 FROM groups WHERE digest = ?", (digest,)).fetchone() is not None

    def groups(self, digests: Iterable[bytes]) -> list[StoredGroup]:
        """These groups, in this order."""
        found = []
        for digest in digests:
            row = self._db.execute(
                "SELECT digest, peer, version, slot, raw, behavior, rewards FROM groups WHERE digest = ?", (digest,)
            ).fetchone()
            found.append(_group(row))
        return found

    def verified(self, digest: bytes, *, behavior: bytes, rewards: bytes) -> None:
        """A group passed its checks; `behavior` and `rewards` are the learner's own."""
        self._db.execute(
            "UPDATE groups SET state = 'verified', behavior = ?, rewards = ? WHERE digest = ?",
            (behavior, rewards, digest),
        )

    def refused(self, digest: bytes, *, state: str, reason: str) -> None:
        """A group ended as `rejected` or `expired`; its bytes are let go."""
        self._db.execute(
            "UPDATE groups SET state = ?, reason = ?, raw = NULL, behavior = NULL, rewards = NULL WHERE digest = ?",
            (state, reason, digest),
        )

    def unused(self, digest: bytes) -> None:
        """A verified group grew too stale while it waited: credited, never trained on."""
        self._db.execute("UPDATE groups SET state = 'unused', raw = NULL WHERE digest = ?", (digest,))

    def counts(self) -> dict[str, int]:
        """Groups by state."""
        rows = self._db.execute("SELECT state, COUNT(*) FROM groups GROUP BY state")
        return {str(state): int(count) for state, count in rows}

    def slots(self, peer: bytes, version: int) -> tuple[int, int]:
        """(groups received, highest slot + 1) of a peer under a version; their difference was withheld or is late."""
        row = self._db.execute(
            "SELECT COUNT(DISTINCT slot), COALESCE(MAX(slot) + 1, 0) FROM groups WHERE peer = ? AND version = ?",
            (peer, version),
        ).fetchone()
        return int(row[0]), int(row[1])

    # --- batches -----------------------------------------------------------------------------------------------

    def begin_step(self, step: int, digests: Sequence[bytes]) -> None:
        """Record the batch of the update from `step` to `step + 1`, before it is computed."""
        self._db.execute("INSERT INTO batches (step, digests) VALUES (?, ?)", (step, b"".join(digests)))
        self._db.executemany(
            "UPDATE groups SET state = 'used', used_step = ? WHERE digest = ?", [(step, d) for d in digests]
        )

    def trained_on(self, peer: bytes, *, before_step: int, most: int) -> int:
        """Groups of a peer in the batches of earlier updates, counted up to `most`. A replay counts the same."""
        row = self._db.execute(
            "SELECT COUNT(*) FROM (SELECT 1 FROM groups WHERE state = 'used' AND peer = ? AND used_step < ? LIMIT ?)",
            (peer, before_step, most),
        ).fetchone()
        return int(row[0])

    def batch(self, step: int) -> list[bytes] | None:
        """The batch recorded for an update, or None when it was not begun."""
        row = self._db.execute("SELECT digests FROM batches WHERE step = ?", (step,)).fetchone()
        return None if row is None else [row[0][i : i + 32] for i in range(0, len(row[0]), 32)]

    def forget_batches_before(self, step: int) -> None:
        """A checkpoint at `step` is safe on disk: earlier batches will not be replayed."""
        self._db.execute(
            "UPDATE groups SET raw = NULL, behavior = NULL, rewards = NULL WHERE state = 'used' AND used_step < ?"
            " AND raw IS NOT NULL",
            (step,),
        )

    # --- policies ----------------------------------------------------------------------------------------------

    def add_policy(self, version: int, step: int, raw: bytes) -> None:
        """Keep a signed manifest before it is published."""
        self._db.execute("INSERT INTO policies (version, step, raw) VALUES (?, ?, ?)", (version, step, raw))

    def policy_at(self, step: int) -> bytes | None:
        """The manifest envelope published at a step, if any."""
        row = self._db.execute("SELECT raw FROM policies WHERE step = ?", (step,)).fetchone()
        return None if row is None else bytes(row[0])

    def was_published(self, version: int, digest: bytes) -> bool:
        """Whether this very manifest was ever published under this version, however long ago."""
        row = self._db.execute("SELECT raw FROM policies WHERE version = ?", (version,)).fetchone()
        return row is not None and envelope_digest(bytes(row[0])) == digest

    def policies(self, *, from_step: int) -> list[bytes]:
        """Manifest envelopes published at or after a step, and the newest however old it is; oldest first.

        With a bound as short as the way between two versions the newest may be older than the window, and what comes
        next is still the version after it.
        """
        rows = self._db.execute(
            "SELECT raw FROM policies WHERE step >= ? OR version = (SELECT MAX(version) FROM policies)"
            " ORDER BY version",
            (from_step,),
        )
        return [bytes(row[0]) for row in rows]

    def policy_count(self) -> int:
        """Versions published."""
        return int(self._db.execute("SELECT COUNT(*) FROM policies").fetchone()[0])

    # --- ledger ------------------------------------------------------------------------------------------------

    @property
    def height(self) -> int:
        """Entries in the ledger."""
        return self._height

    @property
    def head(self) -> Digest:
        """Digest of the newest entry."""
        return self._head

    def append(self, envelope: bytes) -> None:
        """Add one signed envelope to the ledger. Call it inside `transaction` together with what it records."""
        raw, head = ledger_chain.append(self._height, self._head, envelope)
        self._db.execute("INSERT INTO ledger (height, raw) VALUES (?, ?)", (self._height, raw))
        self._height, self._head = self._height + 1, head

    def add_verdict(self, verdict: Verdict, validator: bytes, envelope: bytes) -> bool:
        """Take a validator's verdict on a group that was taken in here, once, as far as the quotas go.

        The ledger gets it at once when the group has its receipt, else by `settled`. False when it was not taken.
        """
        row = self._db.execute("SELECT peer, version, state FROM groups WHERE digest = ?", (verdict.group,)).fetchone()
        if row is None or (bytes(row[0]), int(row[1])) != (verdict.peer, verdict.version):
            return False
        (taken,) = self._db.execute(
            "SELECT COUNT(*) FROM audits WHERE validator = ? AND version = ?", (validator, verdict.version)
        ).fetchone()
        (heard,) = self._db.execute("SELECT COUNT(*) FROM audits WHERE digest = ?", (verdict.group,)).fetchone()
        if taken >= VERDICTS_PER_VERSION or heard >= VERDICTS_PER_GROUP:
            return False
        waiting = envelope if row[2] == "stored" else None
        added = self._db.execute(
            "INSERT OR IGNORE INTO audits (validator, digest, version, waiting) VALUES (?, ?, ?, ?)",
            (validator, verdict.group, verdict.version, waiting),
        ).rowcount
        if added and waiting is None:
            self.append(envelope)
        return bool(added)

    def settled(self, digests: Iterable[bytes]) -> None:
        """These groups' receipts are in the ledger: verdicts that came before them may follow."""
        for digest in digests:
            waiting = self._db.execute(
                "SELECT rowid, waiting FROM audits WHERE digest = ? AND waiting IS NOT NULL ORDER BY rowid", (digest,)
            ).fetchall()
            for rowid, envelope in waiting:
                self.append(bytes(envelope))
                self._db.execute("UPDATE audits SET waiting = NULL WHERE rowid = ?", (rowid,))

    def entries(self, from_height: int, limit: int) -> list[bytes]:
        """Ledger entries from a height on."""
        rows = self._db.execute(
            "SELECT raw FROM ledger WHERE height >= ? ORDER BY height LIMIT ?", (from_height, limit)
        )
        return [bytes(row[0]) for row in rows]

    def _read_head(self) -> tuple[int, Digest]:
        row = self._db.execute("SELECT height, raw FROM ledger ORDER BY height DESC LIMIT 1").fetchone()
        return (0, ledger_chain.GENESIS) if row is None else (int(row[0]) + 1, ledger_chain.entry_digest(bytes(row[1])))


def _group(row: tuple[bytes, bytes, int, int, bytes | None, bytes | None, bytes | None]) -> StoredGroup:
    digest, peer, version, slot, raw, behavior, rewards = row
    return StoredGroup(Digest(digest), peer, version, slot, raw or b"", behavior or b"", rewards or b"")
