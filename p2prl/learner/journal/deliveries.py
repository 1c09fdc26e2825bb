"""Read-only access to when each volunteer's groups came, and what became of them."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from p2prl.errors import MachineError
from p2prl.learner.journal.groups import GroupState
from p2prl.protocol.envelope import open_envelope
from p2prl.protocol.rejection_reasons import FAULTS


@dataclass(frozen=True, slots=True)
class Delivery:
    """A group that was judged by its contents."""

    peer: bytes
    version: int
    arrived: float
    """Seconds since 1970."""
    passed: bool


@dataclass(frozen=True, slots=True)
class Deliveries:
    """What came since a moment."""

    groups: tuple[Delivery, ...]
    """In order of arrival. Groups that nobody judged, or that only came too late, are not among them."""
    expired: int
    """Groups that grew too stale, checked or not."""
    published: dict[int, float]
    """Time at which each version was signed, seconds since 1970."""


def read_deliveries(path: Path, *, since: float) -> Deliveries:
    """Deliveries of the journal at `path`. In WAL mode a reader never blocks the learner that writes."""
    passed = (GroupState.VERIFIED, GroupState.USED, GroupState.UNUSED)
    try:
        db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None)
        try:
            rows = db.execute(
                "SELECT peer, version, arrived, state IN (?, ?, ?) FROM groups WHERE arrived >= ? AND"
                " (state IN (?, ?, ?) OR state = ? AND reason IN (SELECT value FROM json_each(?)))"
                " ORDER BY arrived, rowid",
                (*passed, since, *passed, GroupState.REJECTED, json.dumps(sorted(FAULTS))),
            ).fetchall()
            expired = db.execute(
                "SELECT COUNT(*) FROM groups WHERE arrived >= ? AND state IN (?, ?)",
                (since, GroupState.EXPIRED, GroupState.UNUSED),
            ).fetchone()[0]
            least = min((row[1] for row in rows), default=0)
            signed = db.execute("SELECT version, raw FROM policies WHERE version >= ?", (least,)).fetchall()
        finally:
            db.close()
    except sqlite3.Error as error:
        raise MachineError(
            f"the journal {path} cannot be read: {error}",
            remedy="Use a run folder whose learner has been started at least once with this release.",
        ) from error
    return Deliveries(
        groups=tuple(Delivery(bytes(peer), int(version), float(at), bool(ok)) for peer, version, at, ok in rows),
        expired=int(expired),
        published={int(version): open_envelope(bytes(raw), now=None).sent_ms / 1000 for version, raw in signed},
    )
