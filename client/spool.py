"""The volunteer's spool: finished groups on disk until the learner has issued their receipts.

A group is on disk before it is published, as `generated`. The learner's signed storage receipt makes it `delivered`.
Its signed receipt makes it `verified`, `rejected` or `expired`, also without a storage receipt: that one may be lost.
This machine expires groups as well, those that are too old, that it has no room for, or that no peer would accept.
A group too large for one envelope has its body in a table of its own, dropped with the envelope. Everything is keyed by
the envelope's digest, so repeating any step after a crash is harmless, and SIGKILL loses at most the slots being
decoded.
"""

from __future__ import annotations

import contextlib
import shlex
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from p2prl.client.kept_groups import KeptGroups
from p2prl.client.slot_numbers import SlotNumbers
from p2prl.databases import open_database
from p2prl.disk_full import write_error
from p2prl.errors import MachineError
from p2prl.protocol.digests import Digest
from p2prl.protocol.ledger_messages import Receipt, ReceiptState

_SCHEMA = """
CREATE TABLE IF NOT EXISTS groups (
    digest BLOB PRIMARY KEY,
    version INTEGER NOT NULL,
    slot INTEGER NOT NULL,
    raw BLOB,
    state TEXT NOT NULL,
    reason TEXT NOT NULL DEFAULT '',
    tokens INTEGER NOT NULL DEFAULT 0,
    reward REAL NOT NULL,
    created REAL NOT NULL,
    scored INTEGER NOT NULL DEFAULT 1,
    UNIQUE (version, slot)
);
CREATE TABLE IF NOT EXISTS bodies (digest BLOB PRIMARY KEY, size INTEGER NOT NULL, body BLOB NOT NULL);
CREATE TRIGGER IF NOT EXISTS drop_body AFTER UPDATE OF raw ON groups WHEN NEW.raw IS NULL
    BEGIN DELETE FROM bodies WHERE digest = NEW.digest; END;
CREATE INDEX IF NOT EXISTS waiting ON groups (state, created);
CREATE TABLE IF NOT EXISTS ledger_read (height INTEGER NOT NULL, head BLOB NOT NULL);
INSERT INTO ledger_read SELECT 0, zeroblob(32) WHERE NOT EXISTS (SELECT 1 FROM ledger_read);
CREATE TABLE IF NOT EXISTS slots_done (below INTEGER NOT NULL);
INSERT INTO slots_done SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM slots_done);
"""


class SpoolState(StrEnum):
    """State of a group in the spool; the values are stored on disk."""

    GENERATED = "generated"
    """Not confirmed by the learner."""
    DELIVERED = "delivered"
    """The learner has it on disk."""
    VERIFIED = "verified"
    REJECTED = "rejected"
    EXPIRED = "expired"
    """Too old for the learner, or given up here."""


class Added(StrEnum):
    """What became of a finished group; the values end a sentence about one that was given up."""

    STORED = "it is on disk"
    NO_ROOM = "the disk has no room for it"
    SLOT_TAKEN = "its slot has another group"


GIVEN_UP = {
    "too_late": "It was older than any learner accepts before one had stored it.",
    "spool_full": "The spool had no room left for groups that no learner has stored.",
    "disk_full": "The disk had no room for it.",
    "not_sendable": "No peer would accept it: it is too large for the run, damaged, or signed with another key.",
}
"""Reasons why this machine expired a group, beside those of the learner's receipts."""

_OPEN = (SpoolState.GENERATED, SpoolState.DELIVERED)

_RECEIPT_STATES: dict[int, SpoolState] = {
    ReceiptState.VERIFIED: SpoolState.VERIFIED,
    ReceiptState.CREDITED_BY_SAMPLING: SpoolState.VERIFIED,
    ReceiptState.REJECTED: SpoolState.REJECTED,
    ReceiptState.EXPIRED: SpoolState.EXPIRED,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class SpoolConfig:
    """Limits on the undelivered groups a volunteer keeps."""

    max_bytes: int = 2 * 1024**3
    """Bytes of groups that no learner has confirmed; past it the oldest expire."""
    max_age_s: float = 7 * 24 * 3600.0
    """Groups older than the wire's replay window can never be delivered."""


class Spool:
    """One volunteer's groups of one run."""

    def __init__(self, path: Path, config: SpoolConfig) -> None:
        """Open or create the database. Raises `MachineError`."""
        self._path = path
        self._config = config
        try:
            self._db = open_database(path, synchronous="FULL")
            self._db.executescript(_SCHEMA)
            self._kept = KeptGroups(self._db)
            if "scored" not in {row[1] for row in self._db.execute("PRAGMA table_info(groups)")}:  # an older release
                self._db.execute("ALTER TABLE groups ADD COLUMN scored INTEGER NOT NULL DEFAULT 1")
        except (OSError, sqlite3.Error) as error:
            is_damaged = getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)
            remedy = (
                f"It is damaged. To go on without the groups in it: mv {shlex.quote(str(path))} {path.name}.damaged"
                if is_damaged
                else "Free some space or fix the directory's permissions."
            )
            raise MachineError(f"cannot open the spool {path}: {error}", remedy=remedy) from error

    def limit(self, max_bytes: int) -> None:
        """Keep at most `max_bytes` of groups from now on."""
        self._config = replace(self._config, max_bytes=max_bytes)

    def bound_times(self, now: float) -> None:
        """Take groups that were sampled in times to come, by a clock that was wrong, for sampled now.

        They would not be delivered before.
        """
        self._write("UPDATE groups SET created = ? WHERE created > ?", (now, now))

    def close(self) -> None:
        """Close the database; everything is already on disk."""
        self._db.close()

    def add(
        self,
        digest: bytes,
        raw: bytes,
        *,
        version: int,
        slot: int,
        tokens: int,
        reward: float | None,
        now: float,
        body: bytes = b"",
    ) -> Added:
        """Store a finished group: publish it only if this returns `STORED`. `reward` is None where volunteers cannot
        score, as in a data task. Raises `MachineError` when the disk is full.

        A large group for which alone there is no room is recorded as expired. A second group of one slot and version
        is not recorded: no learner takes both. Who follows `slot_numbers` samples none.
        """
        row = (digest, version, slot, raw, SpoolState.GENERATED, tokens, reward or 0.0, now, reward is not None)
        try:
            return self._insert(digest, row, body)
        except MachineError:
            if not body:
                raise
            self._insert(digest, row, b"")
            self.give_up(digest, "disk_full")
            return Added.NO_ROOM

    def _insert(self, digest: bytes, row: tuple[object, ...], body: bytes) -> Added:
        with self._transaction():
            added = self._write(
                "INSERT OR IGNORE INTO groups (digest, version, slot, raw, state, tokens, reward, created, scored)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                row,
            )
            if added and body:
                self._write("INSERT INTO bodies (digest, size, body) VALUES (?, ?, ?)", (digest, len(body), body))
        is_known = added or self._db.execute("SELECT 1 FROM groups WHERE digest = ?", (digest,)).fetchone()
        return Added.STORED if is_known else Added.SLOT_TAKEN

    def body(self, digest: bytes) -> bytes:
        """The body of a group that no learner has confirmed; empty if it has none."""
        row = self._db.execute("SELECT body FROM bodies WHERE digest = ?", (digest,)).fetchone()
        return bytes(row[0]) if row else b""

    def bytes_of(self, digest: bytes) -> tuple[bytes, bytes] | None:
        """The envelope and the body of a group, also of a settled one that is kept; None when they are gone."""
        row = self._db.execute("SELECT raw FROM groups WHERE digest = ? AND raw IS NOT NULL", (digest,)).fetchone()
        return self._kept.bytes_of(digest) if row is None else (bytes(row[0]), self.body(digest))

    def give_up(self, digest: bytes, reason: str) -> bool:
        """Expire a group that cannot be sent, and delete its bytes. Returns whether it was ours and unconfirmed."""
        changed = self._write(
            "UPDATE groups SET state = ?, reason = ?, raw = NULL WHERE digest = ? AND state = ?",
            (SpoolState.EXPIRED, reason, digest, SpoolState.GENERATED),
        )
        return changed > 0

    def slot_numbers(self) -> SlotNumbers:
        """The slots that have a group, of whichever version, or were skipped. Others are sampled, also after a crash.

        Spools of earlier releases, which numbered the slots of each version from 0, continue above them all.
        """
        (lowest,) = self._db.execute("SELECT below FROM slots_done").fetchone()
        numbers = SlotNumbers(lowest)
        numbers.done(slot for (slot,) in self._db.execute("SELECT slot FROM groups WHERE slot >= ?", (lowest,)))
        return numbers

    def sampled_version(self) -> int | None:
        """Newest version that a slot was sampled with, −1 if all were skipped; None where there was no slot yet."""
        (version,) = self._db.execute("SELECT MAX(version) FROM groups").fetchone()
        (below,) = self._db.execute("SELECT below FROM slots_done").fetchone()
        return -1 if version is None and below else version

    def mark_slots_done(self, below: int) -> None:
        """Every slot below this one has a group, is skipped, or was never this machine's."""
        self._write("UPDATE slots_done SET below = ?", (below,))

    def undelivered(self, limit: int, *, created_before: float, after: bytes | None = None) -> list[bytes]:
        """Envelopes no learner has confirmed, oldest first, beginning after the group `after` if there is one of this
        digest; newer ones may still be in flight."""
        query = "SELECT created, slot FROM groups WHERE digest = ?"
        created, slot = self._db.execute(query, (after,)).fetchone() or (0.0, -1)
        rows = self._db.execute(
            "SELECT raw FROM groups WHERE state = ? AND created < ? AND (created, slot) > (?, ?)"
            " ORDER BY created, slot LIMIT ?",
            (SpoolState.GENERATED, created_before, created, slot, limit),
        )
        return [bytes(row[0]) for row in rows]

    def has_delivered(self, *, created_before: float) -> bool:
        """Whether a receipt is overdue: the learner holds a group this old and has not settled it."""
        row = self._db.execute(
            "SELECT 1 FROM groups WHERE state = ? AND created < ? LIMIT 1", (SpoolState.DELIVERED, created_before)
        ).fetchone()
        return row is not None

    @property
    def ledger_position(self) -> tuple[int, Digest]:
        """(entries read, digest of the last one) of the ledger, which is read for receipts missed by gossip."""
        height, head = self._db.execute("SELECT height, head FROM ledger_read").fetchone()
        return int(height), Digest(bytes(head))

    @ledger_position.setter
    def ledger_position(self, position: tuple[int, Digest]) -> None:
        self._write("UPDATE ledger_read SET height = ?, head = ?", position)

    def count_outstanding(self) -> int:
        """Number of groups that are not settled."""
        return int(self._db.execute("SELECT COUNT(*) FROM groups WHERE state IN (?, ?)", _OPEN).fetchone()[0])

    def count_delivered(self) -> int:
        """Number of groups the learner holds and has not settled."""
        return int(self._db.execute("SELECT COUNT(*) FROM groups WHERE state = 'delivered'").fetchone()[0])

    def oldest_delivered(self, limit: int) -> frozenset[bytes]:
        """The oldest groups the learner holds and has not settled."""
        rows = self._db.execute(
            "SELECT digest FROM groups WHERE state = ? ORDER BY created, slot LIMIT ?", (SpoolState.DELIVERED, limit)
        )
        return frozenset(bytes(digest) for (digest,) in rows)

    def held(self, digests: Iterable[bytes], *, state: SpoolState = SpoolState.DELIVERED) -> frozenset[bytes]:
        """Those of these groups that are in a state: by default that the learner holds and has not settled."""
        query = "SELECT 1 FROM groups WHERE digest = ? AND state = ?"
        return frozenset(digest for digest in digests if self._db.execute(query, (digest, state)).fetchone())

    def count_with_learner(self, *, created_after: float, now: float) -> int:
        """Number of unsettled groups the learner holds, or that are so new that they may be in flight.

        Groups dated after `now` were made before a clock was corrected: no learner accepts them yet.
        """
        row = self._db.execute(
            "SELECT COUNT(*) FROM groups WHERE state = ? AND created BETWEEN ? AND ?",
            (SpoolState.GENERATED, created_after, now),
        ).fetchone()
        return self.count_delivered() + int(row[0])

    def mark_stored(self, digests: Iterable[bytes]) -> None:
        """The learner has these groups on disk: resend them no more."""
        for digest in self.held(digests, state=SpoolState.GENERATED):  # most are other volunteers'
            self._release(
                digest,
                "UPDATE groups SET state = ?, raw = NULL WHERE digest = ? AND state = ?",
                (SpoolState.DELIVERED, digest, SpoolState.GENERATED),
            )

    def settle(self, receipt: Receipt, *, step: int = 0, sent_ms: int = 0) -> bool:
        """Record the learner's receipt of a group, signed at a learner step and a time (Unix milliseconds).

        Returns whether the group was ours and open.
        """
        if receipt.state not in _RECEIPT_STATES:  # a state of a newer release: the group stays open, and expires later
            return False
        changed = self._release(
            receipt.group,
            "UPDATE groups SET state = ?, reason = ?, raw = NULL WHERE digest = ? AND state IN (?, ?)",
            (_RECEIPT_STATES[receipt.state], receipt.reason, receipt.group, *_OPEN),
            on_change=lambda: self._kept.note(receipt, step=step, sent_ms=sent_ms),
        )
        return changed > 0

    def _release(
        self, digest: bytes, statement: str, values: Sequence[object], on_change: Callable[[], None] = lambda: None
    ) -> int:
        """Change a group that needs no delivery any more, and keep its bytes aside while there is room for them."""

        def change(keep: Callable[[], None]) -> int:
            with self._transaction():
                keep()
                if changed := self._write(statement, values):
                    on_change()
            return changed

        with contextlib.suppress(MachineError):
            return change(lambda: self._kept.take(digest))
        return change(self._kept.drop_all)

    def expire(self, *, now: float) -> int:
        """Expire groups that are too old for any learner or exceed the spool's size. Returns how many."""
        expired = self._write(
            "UPDATE groups SET state = ?, reason = 'too_late', raw = NULL WHERE state IN (?, ?) AND created < ?",
            (SpoolState.EXPIRED, *_OPEN, now - self._config.max_age_s),
        )
        row = self._db.execute(
            "SELECT (SELECT TOTAL(LENGTH(raw)) FROM groups) + (SELECT TOTAL(size) FROM bodies)"
        ).fetchone()
        self._kept.trim(max_bytes=self._config.max_bytes, undelivered_bytes=row[0])
        excess = row[0] - self._config.max_bytes
        if excess <= 0:
            return expired
        for digest, size in self._db.execute(
            "SELECT g.digest, LENGTH(g.raw) + COALESCE(b.size, 0) FROM groups AS g LEFT JOIN bodies AS b"
            " ON b.digest = g.digest WHERE g.raw IS NOT NULL ORDER BY g.created"
        ).fetchall():
            if excess <= 0:
                break
            self._write(
                "UPDATE groups SET state = ?, reason = 'spool_full', raw = NULL WHERE digest = ?",
                (SpoolState.EXPIRED, digest),
            )
            excess -= size
            expired += 1
        return expired

    def newest_rewards(self, limit: int) -> list[float]:
        """Rewards of the newest groups that have one, in order of creation."""
        rows = self._db.execute("SELECT reward FROM groups WHERE scored ORDER BY rowid DESC LIMIT ?", (limit,))
        return [float(row[0]) for row in reversed(rows.fetchall())]

    def counts(self) -> dict[str, int]:
        """Groups by `SpoolState`."""
        rows = self._db.execute("SELECT state, COUNT(*) FROM groups GROUP BY state")
        return {str(state): int(count) for state, count in rows}

    def reasons(self) -> dict[str, int]:
        """Groups that earned nothing, by the reason given."""
        rows = self._db.execute("SELECT reason, COUNT(*) FROM groups WHERE reason != '' GROUP BY reason")
        return {str(reason): int(count) for reason, count in rows}

    def rejected_since(self, reason: str, moment: float) -> int:
        """Groups sampled after `moment` that were rejected for this reason."""
        row = self._db.execute(
            "SELECT COUNT(*) FROM groups WHERE state = ? AND reason = ? AND created >= ?",
            (SpoolState.REJECTED, reason, moment),
        ).fetchone()
        return int(row[0])

    def verified_tokens(self) -> int:
        """Completion tokens of verified groups, as the learner has counted them in its receipts."""
        query = (
            "SELECT TOTAL(COALESCE(r.tokens, g.tokens)) FROM groups AS g LEFT JOIN receipts AS r ON r.digest = g.digest"
            " WHERE g.state = 'verified'"
        )
        return int(self._db.execute(query).fetchone()[0])

    def _write(self, statement: str, values: Sequence[object]) -> int:
        """Change rows and return how many. On disk when this returns. Raises `MachineError` when the disk is full."""
        with self._machine_errors():
            return self._db.execute(statement, values).rowcount

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """All that the block writes, or nothing of it. On disk when it ends; raises `MachineError` as `_write`."""
        with self._machine_errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:  # it failed; a full disk makes SQLite roll back by itself
                    self._db.execute("ROLLBACK")

    @contextlib.contextmanager
    def _machine_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise write_error(error, f"the spool {self._path}", kept="finished work is safe") from error
