"""Read-only view of a volunteer's groups and their receipts: what this machine knows without asking anybody.

It reads the spool of a worker that may be running, and changes nothing: in WAL mode a reader never blocks the writer.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from p2prl.errors import MachineError

_T = TypeVar("_T")

_GROUP = (
    "SELECT g.digest, g.version, g.slot, g.state, g.reason, g.tokens, CASE WHEN g.scored THEN g.reward END, g.created,"
    " {kept}, {receipt} FROM groups AS g {joins} {where} ORDER BY g.created DESC, g.slot DESC LIMIT ?"
)


_WAITING = (
    "SELECT g.raw, COALESCE(b.body, zeroblob(0)) FROM groups AS g LEFT JOIN bodies AS b ON b.digest = g.digest"
    " WHERE g.digest = ? AND g.raw IS NOT NULL"
)
_KEPT = "SELECT raw, body FROM kept WHERE digest = ?"


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnReceipt:
    """The learner's figures of a group."""

    step: int
    """Learner step at which it was signed."""
    sent_ms: int
    """When it was signed, Unix milliseconds."""
    tokens: int
    """Credited tokens."""
    completions: int
    reward: float
    """Mean reward of the group, as the learner computed it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnGroup:
    """One group of a worker."""

    digest: bytes
    """The group's name in receipts and verdicts."""
    version: int
    slot: int
    state: str
    """A `SpoolState`."""
    reason: str
    """Why it earned nothing; empty otherwise."""
    tokens: int
    """Completion tokens, as sampled here."""
    reward: float | None
    """Mean reward as this machine scored it; None where volunteers cannot score."""
    created: float
    """When it was sampled, Unix seconds."""
    is_kept: bool
    """Whether its bytes are still here, so that it can be replayed."""
    receipt: OwnReceipt | None
    """None before the learner's receipt, for a group that this machine gave up, and for those of older releases."""


class OwnGroups:
    """The groups in one spool. Close it."""

    def __init__(self, path: Path) -> None:
        """Raises `MachineError` when there is no readable spool at `path`."""
        self._path = path
        try:
            self._db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None)
            tables = {row[0] for row in self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        except sqlite3.Error as error:
            raise self._unreadable(error) from error
        self._has_receipts = {"kept", "receipts"} <= tables  # an older release kept neither
        if "groups" not in tables:
            raise self._unreadable("it holds no groups")

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def newest(self, limit: int) -> list[OwnGroup]:
        """The newest groups, newest first."""
        return self._groups("", (limit,))

    def named(self, prefix: str, limit: int) -> list[OwnGroup]:
        """Groups whose digest begins with these hexadecimal digits, newest first."""
        return self._groups("WHERE lower(hex(g.digest)) GLOB ? || '*'", (prefix.lower(), limit))

    def newest_credited(self, limit: int) -> frozenset[bytes]:
        """The digests of the groups that were credited last, in the order of their receipts."""
        if not self._has_receipts:
            return frozenset()
        query = (
            "SELECT r.digest FROM receipts AS r JOIN groups AS g ON g.digest = r.digest WHERE g.state = 'verified'"
            " ORDER BY r.rowid DESC LIMIT ?"
        )
        return frozenset(bytes(row[0]) for row in self._read(partial(self._rows, query, (limit,))))

    def counts(self) -> dict[tuple[str, str], int]:
        """Groups by state and reason."""
        query = "SELECT state, reason, COUNT(*) FROM groups GROUP BY state, reason"
        return {(str(row[0]), str(row[1])): int(row[2]) for row in self._read(partial(self._rows, query, ()))}

    def credited_by_day(self) -> dict[str, int]:
        """Credited tokens by the day (UTC, as 2026-11-23) on which their groups were sampled, oldest first."""
        tokens = "COALESCE(r.tokens, g.tokens)" if self._has_receipts else "g.tokens"
        joins = "LEFT JOIN receipts AS r ON r.digest = g.digest" if self._has_receipts else ""
        query = (
            f"SELECT date(g.created, 'unixepoch'), SUM({tokens}) FROM groups AS g {joins}"  # noqa: S608 - our own texts
            " WHERE g.state = 'verified' GROUP BY 1 ORDER BY 1"
        )
        return {str(row[0]): int(row[1]) for row in self._read(partial(self._rows, query, ()))}

    def bytes_of(self, digest: bytes) -> tuple[bytes, bytes] | None:
        """The envelope and the body of a group; None when they are not here any more."""
        for query in (_WAITING, _KEPT)[: 2 if self._has_receipts else 1]:
            if rows := self._read(partial(self._rows, query, (digest,))):
                return bytes(rows[0][0]), bytes(rows[0][1])
        return None

    def _rows(self, query: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        return self._db.execute(query, values).fetchall()

    def _groups(self, where: str, values: tuple[object, ...]) -> list[OwnGroup]:
        known = self._has_receipts
        query = _GROUP.format(
            kept="g.raw IS NOT NULL OR k.digest IS NOT NULL" if known else "g.raw IS NOT NULL",
            receipt="r.step, r.sent_ms, r.tokens, r.completions, r.reward" if known else "NULL, 0, 0, 0, 0",
            joins="LEFT JOIN kept AS k ON k.digest = g.digest LEFT JOIN receipts AS r ON r.digest = g.digest"
            if known
            else "",
            where=where,
        )
        return [_group(row) for row in self._read(partial(self._rows, query, values))]

    def _read(self, query: Callable[[], _T]) -> _T:
        try:
            return query()
        except sqlite3.Error as error:
            raise self._unreadable(error) from error

    def _unreadable(self, why: object) -> MachineError:
        return MachineError(
            f"the spool {self._path} cannot be read: {why}",
            remedy="Check who may read it, or start p2prl join once more: it repairs what a crash left.",
        )


def _group(row: tuple[Any, ...]) -> OwnGroup:
    digest, version, slot, state, reason, tokens, reward, created, is_kept, step, sent_ms, credited, count, mean = row
    receipt = None
    if step is not None:
        receipt = OwnReceipt(step=step, sent_ms=sent_ms, tokens=credited, completions=count, reward=mean)
    return OwnGroup(
        digest=bytes(digest),
        version=version,
        slot=slot,
        state=str(state),
        reason=str(reason),
        tokens=tokens,
        reward=reward,
        created=created,
        is_kept=bool(is_kept),
        receipt=receipt,
    )
