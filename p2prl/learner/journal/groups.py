"""Groups of the journal: every one the learner stored, with its state; the signed policies.

A group's bytes are deleted as soon as nothing can need them: those of a rejected or expired group at once, and its row
after a week (`forget_refused`); those of a trained group when a checkpoint covers its update and newer groups fill
their room (`kept_rollouts`), while its row stays, by which its slot is known to be taken and its author to have
delivered. A group too large for one envelope has its body in a table of its own, dropped with the envelope, and so have
the rewards of a group's steps.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import envelope_digest
from p2prl.protocol.rejection_reasons import FAULTS

SCHEMA = """
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
CREATE TABLE IF NOT EXISTS group_bodies (
    digest BLOB PRIMARY KEY,
    peer BLOB NOT NULL,
    size INTEGER NOT NULL,
    body BLOB NOT NULL
);
CREATE TRIGGER IF NOT EXISTS drop_group_body AFTER UPDATE OF raw ON groups WHEN NEW.raw IS NULL
    BEGIN DELETE FROM group_bodies WHERE digest = NEW.digest; END;
CREATE TABLE IF NOT EXISTS group_steps (
    digest BLOB PRIMARY KEY,
    rewards BLOB NOT NULL
);
CREATE TRIGGER IF NOT EXISTS drop_group_steps AFTER UPDATE OF raw ON groups WHEN NEW.raw IS NULL
    BEGIN DELETE FROM group_steps WHERE digest = NEW.digest; END;
CREATE INDEX IF NOT EXISTS groups_state ON groups (state, arrived);
CREATE INDEX IF NOT EXISTS groups_waiting ON groups (state, peer, arrived);
CREATE INDEX IF NOT EXISTS groups_peer_slot ON groups (peer, slot);
CREATE INDEX IF NOT EXISTS groups_kept ON groups (used_step) WHERE raw IS NOT NULL;
CREATE TABLE IF NOT EXISTS batches (step INTEGER PRIMARY KEY, digests BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS policies (version INTEGER PRIMARY KEY, step INTEGER NOT NULL, raw BLOB NOT NULL);
"""


class GroupState(StrEnum):
    """State of a stored group. The values are on disk and must not change."""

    STORED = "stored"
    """Acknowledged, not checked yet."""
    VERIFIED = "verified"
    """Passed its checks and waits in the buffer."""
    USED = "used"
    """In the batch of an update."""
    UNUSED = "unused"
    """Passed its checks, then grew too stale or was one too many: credited, never trained on."""
    REJECTED = "rejected"
    """Failed a check."""
    EXPIRED = "expired"
    """Too stale when it was checked; not its author's fault."""


_FORGOTTEN_AT_ONCE = 4_096
"""Refused groups deleted in one go: more than arrive between two checkpoints, and no long wait."""


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A row of the groups table: the envelope and, once verified, the learner's own log-probs and rewards."""

    digest: Digest
    peer: bytes
    version: int
    slot: int
    raw: bytes
    behavior: bytes
    """Little-endian float32 log-probs at the declared version, completions concatenated; not a number at the tokens of
    an environment, which are not trained on. Empty until verified."""
    rewards: bytes
    """Little-endian float32, one per completion; empty until verified."""
    body: bytes = b""
    """Body of a group whose envelope is only a header."""
    reason: str = ""
    """Why it is rejected, or will be once its turn comes."""
    step_rewards: bytes = b""
    """Little-endian float32, one per token as `behavior`: the reward of the step that the token ends, not a number at
    the others. Empty in a run whose reward judges no steps, and until verified."""


class GroupTable:
    """Stored groups. Every write belongs inside `Journal.transaction`."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._unchecked_bytes = float("inf")
        """Bytes of the groups that wait for their check, or more."""
        self._may_be_fewer = True
        """Whether a group has left them since they were added up."""

    def store(self, group: StoredGroup, now: float) -> bool:
        """Store a group that arrived; False when it is already stored."""
        cursor = self._db.execute(
            "INSERT OR IGNORE INTO groups (digest, peer, version, slot, raw, arrived, reason)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (group.digest, group.peer, group.version, group.slot, group.raw, now, group.reason),
        )
        if cursor.rowcount > 0:
            self._unchecked_bytes += len(group.raw) + len(group.body)
        if cursor.rowcount > 0 and group.body:
            self._db.execute(
                "INSERT INTO group_bodies (digest, peer, size, body) VALUES (?, ?, ?, ?)",
                (group.digest, group.peer, len(group.body), group.body),
            )
        return cursor.rowcount > 0

    def knows(self, digest: bytes) -> bool:
        """Whether a group was ever stored, regardless of its present state."""
        return self._db.execute("SELECT 1 FROM groups WHERE digest = ?", (digest,)).fetchone() is not None

    def state_of(self, digest: bytes, peer: bytes, version: int) -> GroupState | None:
        """State of a group that was stored; None unless it is of this peer and version."""
        row = self._db.execute("SELECT peer, version, state FROM groups WHERE digest = ?", (digest,)).fetchone()
        if row is None or (bytes(row[0]), int(row[1])) != (peer, version):
            return None
        return GroupState(row[2])

    def by_digest(self, digests: Iterable[bytes]) -> list[StoredGroup]:
        """These groups, in this order."""
        return [self._group(digest) for digest in digests]

    def in_state(self, state: GroupState, limit: int) -> list[StoredGroup]:
        """Groups of a state in order of arrival."""
        rows = self._db.execute(
            "SELECT digest FROM groups WHERE state = ? ORDER BY arrived, rowid LIMIT ?", (state, limit)
        ).fetchall()
        return [self._group(row[0]) for row in rows]

    def waiting(self) -> list[tuple[Digest, bytes, int, int]]:
        """(digest, peer, version, bytes) of each group that waits for its check, in order of arrival."""
        rows = self._db.execute(
            "SELECT g.digest, g.peer, g.version, LENGTH(g.raw) + COALESCE(b.size, 0) FROM groups AS g"
            " LEFT JOIN group_bodies AS b ON b.digest = g.digest WHERE g.state = ? ORDER BY g.arrived, g.rowid",
            (GroupState.STORED,),
        )
        return [(Digest(digest), peer, version, size) for digest, peer, version, size in rows]

    def history(self) -> list[tuple[bytes, float, int, int]]:
        """(peer, Unix time, groups passed, groups failed) by peer and hour of arrival, in order of time, as
        `p2prl.protocol.standing.receipt_counts` counts their receipts."""
        rows = self._db.execute(
            "SELECT peer, MAX(arrived), SUM(state IN (?, ?, ?)), "
            " SUM(state = ? AND reason IN (SELECT value FROM json_each(?)))"
            " FROM groups WHERE state != ? GROUP BY peer, CAST(arrived / 3600 AS INTEGER) ORDER BY MAX(arrived), peer",
            (
                GroupState.VERIFIED,
                GroupState.USED,
                GroupState.UNUSED,
                GroupState.REJECTED,
                json.dumps(sorted(FAULTS)),
                GroupState.STORED,
            ),
        )
        return [(bytes(peer), at, int(passed), int(failed)) for peer, at, passed, failed in rows]

    def forget_refused(self, before: float) -> None:
        """Delete some of the groups that were refused and arrived before a time: their envelopes are too old to arrive
        again, and their receipts are in the ledger."""
        self._db.execute(
            "DELETE FROM groups WHERE rowid IN"
            " (SELECT rowid FROM groups WHERE state IN (?, ?) AND arrived < ? LIMIT ?)",
            (GroupState.REJECTED, GroupState.EXPIRED, before, _FORGOTTEN_AT_ONCE),
        )

    def peers_since(self, moment: float) -> frozenset[bytes]:
        """Peers with a group that arrived after `moment`."""
        rows = self._db.execute("SELECT DISTINCT peer FROM groups WHERE arrived > ?", (moment,))
        return frozenset(bytes(peer) for (peer,) in rows)

    def unchecked_body_bytes(self, peer: bytes) -> int:
        """Bytes of a peer's bodies that wait for their check."""
        row = self._db.execute(
            "SELECT TOTAL(b.size) FROM group_bodies AS b JOIN groups AS g ON g.digest = b.digest"
            " WHERE g.state = ? AND b.peer = ?",
            (GroupState.STORED, peer),
        ).fetchone()
        return int(row[0])

    def unchecked_exceed(self, most_bytes: int) -> bool:
        """Whether all groups that wait for their check have more than `most_bytes` together."""
        if self._unchecked_bytes <= most_bytes:
            return False
        if self._may_be_fewer:  # adding up reads every row: not for each arrival of a flood
            (total,) = self._db.execute(
                "SELECT TOTAL(LENGTH(g.raw) + COALESCE(b.size, 0)) FROM groups AS g"
                " LEFT JOIN group_bodies AS b ON b.digest = g.digest WHERE g.state = ?",
                (GroupState.STORED,),
            ).fetchone()
            self._unchecked_bytes, self._may_be_fewer = total, False
        return self._unchecked_bytes > most_bytes

    def slot_taken(self, peer: bytes, slot: int, *, by_other_than: bytes) -> bool:
        """Whether another verified group, of any version, already fills this slot: it was credited, trained on or
        not."""
        row = self._db.execute(
            "SELECT 1 FROM groups WHERE peer = ? AND slot = ? AND digest != ? AND state IN (?, ?, ?) LIMIT 1",
            (peer, slot, by_other_than, GroupState.VERIFIED, GroupState.USED, GroupState.UNUSED),
        ).fetchone()
        return row is not None

    def slot_came(self, peer: bytes, slot: int) -> bool:
        """Whether any group of this slot was ever stored."""
        row = self._db.execute("SELECT 1 FROM groups WHERE peer = ? AND slot = ? LIMIT 1", (peer, slot)).fetchone()
        return row is not None

    def highest_slot(self, peer: bytes) -> int | None:
        """Highest slot of which a group was ever stored; None without any."""
        (highest,) = self._db.execute("SELECT MAX(slot) FROM groups WHERE peer = ?", (peer,)).fetchone()
        return None if highest is None else int(highest)

    def mark_verified(self, digest: bytes, *, behavior: bytes, rewards: bytes, step_rewards: bytes = b"") -> None:
        """Record that a group passed its checks, with the learner's own log-probs and rewards."""
        self._may_be_fewer = True
        self._db.execute(
            "UPDATE groups SET state = ?, behavior = ?, rewards = ? WHERE digest = ?",
            (GroupState.VERIFIED, behavior, rewards, digest),
        )
        if step_rewards:
            self._db.execute("INSERT OR REPLACE INTO group_steps VALUES (?, ?)", (digest, step_rewards))

    def mark_refused(self, digest: bytes, *, state: GroupState, reason: str) -> None:
        """Record that a group was rejected or has expired, and drop its bytes."""
        self._may_be_fewer = True
        self._db.execute(
            "UPDATE groups SET state = ?, reason = ?, raw = NULL, behavior = NULL, rewards = NULL WHERE digest = ?",
            (state, reason, digest),
        )

    def mark_unused(self, digest: bytes) -> None:
        """Record that a verified group is not trained on, and drop its bytes."""
        self._db.execute(
            "UPDATE groups SET state = ?, raw = NULL, behavior = NULL, rewards = NULL WHERE digest = ?",
            (GroupState.UNUSED, digest),
        )

    def counts(self) -> dict[str, int]:
        """Number of groups by state."""
        rows = self._db.execute("SELECT state, COUNT(*) FROM groups GROUP BY state")
        return {str(state): int(count) for state, count in rows}

    def _group(self, digest: bytes) -> StoredGroup:
        row = self._db.execute(
            "SELECT g.peer, g.version, g.slot, g.raw, g.behavior, g.rewards, b.body, g.reason, s.rewards"
            " FROM groups AS g LEFT JOIN group_bodies AS b ON b.digest = g.digest"
            " LEFT JOIN group_steps AS s ON s.digest = g.digest WHERE g.digest = ?",
            (digest,),
        ).fetchone()
        peer, version, slot, *blobs, reason, steps = row
        raw, behavior, rewards, body, steps = (blob or b"" for blob in (*blobs, steps))
        return StoredGroup(Digest(digest), peer, version, slot, raw, behavior, rewards, body, reason, steps)


class PolicyTable:
    """Every policy manifest that the learner signed, kept before it is published: no second one is ever signed for a
    version, and a version stays recognizable long after its weights are gone. Every write belongs inside
    `Journal.transaction`."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def add(self, version: int, step: int, raw: bytes) -> None:
        """Keep a signed manifest before it is published. Fails when the version has one already."""
        self._db.execute("INSERT INTO policies (version, step, raw) VALUES (?, ?, ?)", (version, step, raw))

    def at_step(self, step: int) -> bytes | None:
        """The manifest envelope published at a step, if any."""
        row = self._db.execute("SELECT raw FROM policies WHERE step = ?", (step,)).fetchone()
        return None if row is None else bytes(row[0])

    def of_version(self, version: int) -> bytes | None:
        """The manifest envelope published under a version, if any."""
        row = self._db.execute("SELECT raw FROM policies WHERE version = ?", (version,)).fetchone()
        return None if row is None else bytes(row[0])

    def was_published(self, version: int, digest: bytes) -> bool:
        """Whether this exact manifest was ever published under this version."""
        raw = self.of_version(version)
        return raw is not None and envelope_digest(raw) == digest

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
