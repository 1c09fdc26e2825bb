"""Verdict tables of the journal: own replays to check verdicts with, the verdicts, and the standing of validators."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from dataclasses import dataclass

from p2prl.models.replay.probes import ReplayProbes
from p2prl.protocol.standing import Standing

REPLAYS_KEPT = 4_096
"""Newest groups whose probes are kept: 18 MB for groups of 16 completions. A later verdict cannot be checked, and does
not enter the ledger."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS replays (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    digest BLOB NOT NULL UNIQUE,
    reason TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    logprobs BLOB NOT NULL,
    deviations BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS verdicts (
    validator BLOB NOT NULL,
    digest BLOB NOT NULL,
    version INTEGER NOT NULL,
    newcomer INTEGER NOT NULL,
    waiting BLOB,
    PRIMARY KEY (validator, digest)
);
CREATE INDEX IF NOT EXISTS verdicts_version ON verdicts (version, newcomer, validator);
CREATE INDEX IF NOT EXISTS verdicts_group ON verdicts (digest);
CREATE INDEX IF NOT EXISTS verdicts_waiting ON verdicts (newcomer) WHERE waiting IS NOT NULL;
CREATE TABLE IF NOT EXISTS validators (
    validator BLOB PRIMARY KEY,
    passed REAL NOT NULL,
    failed REAL NOT NULL,
    at REAL NOT NULL
);
"""


@dataclass(frozen=True, slots=True)
class OwnReplay:
    """What the learner found when it replayed a group."""

    reason: str
    """Why it was rejected; empty when it was verified."""
    tokens: int
    probes: ReplayProbes


@dataclass(frozen=True, slots=True)
class WaitingVerdict:
    """A verdict whose group has no receipt yet."""

    validator: bytes
    newcomer: bool
    envelope: bytes


class VerdictTable:
    """Verdicts and what checks them. Every write belongs inside `Journal.transaction`."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def keep_replay(self, digest: bytes, replay: OwnReplay) -> None:
        """Keep what verdicts on a group are checked with; the oldest replay makes way."""
        probes = replay.probes
        place = self._db.execute(
            "INSERT OR REPLACE INTO replays (digest, reason, tokens, logprobs, deviations) VALUES (?, ?, ?, ?, ?)",
            (digest, replay.reason, replay.tokens, probes.logprobs, probes.deviations),
        ).lastrowid
        assert place is not None
        self._db.execute("DELETE FROM replays WHERE place <= ?", (place - REPLAYS_KEPT,))

    def replay_of(self, digest: bytes) -> OwnReplay | None:
        """The learner's own replay of a group, if it replayed the whole group, lately."""
        row = self._db.execute(
            "SELECT reason, tokens, logprobs, deviations FROM replays WHERE digest = ?", (digest,)
        ).fetchone()
        return None if row is None else OwnReplay(row[0], int(row[1]), ReplayProbes(row[2], row[3]))

    def knows(self, validator: bytes, digest: bytes) -> bool:
        """Whether a verdict of this validator on this group waits or has entered the ledger."""
        query = "SELECT 1 FROM verdicts WHERE validator = ? AND digest = ?"
        return self._db.execute(query, (validator, digest)).fetchone() is not None

    def wait(self, verdict: WaitingVerdict, digest: bytes, version: int) -> None:
        """Keep a verdict until its group has a receipt."""
        self._db.execute(
            "INSERT INTO verdicts (validator, digest, version, newcomer, waiting) VALUES (?, ?, ?, ?, ?)",
            (verdict.validator, digest, version, verdict.newcomer, verdict.envelope),
        )

    def waiting_on(self, digest: bytes) -> list[WaitingVerdict]:
        """Verdicts that wait for a group's receipt."""
        rows = self._db.execute(
            "SELECT validator, newcomer, waiting FROM verdicts WHERE digest = ? AND waiting IS NOT NULL", (digest,)
        )
        return [WaitingVerdict(bytes(row[0]), bool(row[1]), bytes(row[2])) for row in rows]

    def waiting_of_newcomers(self) -> int:
        """Verdicts of all newcomers together that wait."""
        query = "SELECT COUNT(*) FROM verdicts WHERE newcomer = 1 AND waiting IS NOT NULL"
        return int(self._db.execute(query).fetchone()[0])

    def drop_waiting(self, digest: bytes, validators: Collection[bytes] | None = None) -> None:
        """Forget the verdicts that wait for a group's receipt, of these validators or of all."""
        if validators is None:
            self._db.execute("DELETE FROM verdicts WHERE digest = ? AND waiting IS NOT NULL", (digest,))
            return
        self._db.executemany(
            "DELETE FROM verdicts WHERE digest = ? AND validator = ? AND waiting IS NOT NULL",
            [(digest, validator) for validator in validators],
        )

    def enter(self, validator: bytes, digest: bytes, version: int, *, newcomer: bool) -> None:
        """Record that a verdict is in the ledger."""
        self._db.execute(
            "INSERT INTO verdicts (validator, digest, version, newcomer) VALUES (?, ?, ?, ?)",
            (validator, digest, version, newcomer),
        )

    def entered_on(self, digest: bytes, *, newcomers: bool) -> int:
        """Verdicts on a group in the ledger, of newcomers or of validators that were known."""
        return self._count("digest = ? AND newcomer = ?", digest, newcomers)

    def entered_of(self, validator: bytes, version: int) -> int:
        """Verdicts of a validator on groups of a version in the ledger."""
        return self._count("validator = ? AND version = ?", validator, version)

    def entered_of_newcomers(self, version: int) -> int:
        """Verdicts of all newcomers together on groups of a version in the ledger."""
        return self._count("version = ? AND newcomer = 1", version)

    def standing(self, validator: bytes) -> Standing:
        """Standing of a validator from the checks of its verdicts."""
        query = "SELECT passed, failed, at FROM validators WHERE validator = ?"
        row = self._db.execute(query, (validator,)).fetchone()
        return Standing() if row is None else Standing(*row)

    def set_standing(self, validator: bytes, standing: Standing) -> None:
        """Record a validator's standing after a check."""
        self._db.execute(
            "INSERT OR REPLACE INTO validators (validator, passed, failed, at) VALUES (?, ?, ?, ?)",
            (validator, standing.passed, standing.failed, standing.at),
        )

    def _count(self, where: str, *values: bytes | int) -> int:
        query = f"SELECT COUNT(*) FROM verdicts WHERE waiting IS NULL AND {where}"  # noqa: S608 - constants of this file
        return int(self._db.execute(query, values).fetchone()[0])
