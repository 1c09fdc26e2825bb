"""Batches table of the journal: the groups of each update, recorded before it is computed.

A learner that crashed computes the recorded batches again and so arrives at the same weights.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from p2prl.learner.journal.groups import GroupState
from p2prl.protocol.digests import DIGEST_BYTES

SCHEMA = "CREATE TABLE IF NOT EXISTS batches (step INTEGER PRIMARY KEY, digests BLOB NOT NULL);"


class BatchTable:
    """Recorded batches. Every write belongs inside `Journal.transaction`."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def begin(self, step: int, digests: Sequence[bytes]) -> None:
        """Record the batch of the update from `step` to `step + 1`, and mark its groups as used."""
        self._db.execute("INSERT INTO batches (step, digests) VALUES (?, ?)", (step, b"".join(digests)))
        self._db.executemany(
            "UPDATE groups SET state = ?, used_step = ? WHERE digest = ?", [(GroupState.USED, step, d) for d in digests]
        )

    def at_step(self, step: int) -> list[bytes] | None:
        """Digests of the groups of an update; None when it was not begun."""
        row = self._db.execute("SELECT digests FROM batches WHERE step = ?", (step,)).fetchone()
        if row is None:
            return None
        return [row[0][i : i + DIGEST_BYTES] for i in range(0, len(row[0]), DIGEST_BYTES)]

    def groups_trained(self, peer: bytes, *, before_step: int, most: int) -> int:
        """Groups of a peer in the batches before a step, counted up to `most`. A replay counts the same."""
        row = self._db.execute(
            "SELECT COUNT(*) FROM (SELECT 1 FROM groups WHERE state = ? AND peer = ? AND used_step < ? LIMIT ?)",
            (GroupState.USED, peer, before_step, most),
        ).fetchone()
        return int(row[0])

    def forget_before(self, step: int) -> None:
        """Drop the bytes of groups trained on before a checkpoint at `step`: those batches will not be replayed."""
        self._db.execute(
            "UPDATE groups SET raw = NULL, behavior = NULL, rewards = NULL WHERE state = ? AND used_step < ?"
            " AND raw IS NOT NULL",
            (GroupState.USED, step),
        )
