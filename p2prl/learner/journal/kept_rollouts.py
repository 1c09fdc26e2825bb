"""The groups of each update, and for how many updates their bytes are kept once no restart needs them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from p2prl.learner.journal.groups import GroupState
from p2prl.protocol.digests import DIGEST_BYTES

KEPT_ROLLOUT_BYTES = 64_000_000
"""Trained groups kept for `p2prl rollouts`: some 3,000 groups of 8 completions of 512 tokens, and little beside a run's
weights. Groups that a restart needs are kept in any case."""


class BatchTable:
    """The groups of each update, recorded before it is computed: a learner that crashed computes the recorded batches
    again, and so arrives at the same weights. Every write belongs inside `Journal.transaction`."""

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

    def kept_steps(self) -> list[int]:
        """Steps of the updates whose groups still have their bytes, in order."""
        rows = self._db.execute(
            "SELECT DISTINCT used_step FROM groups WHERE raw IS NOT NULL AND used_step IS NOT NULL ORDER BY used_step"
        )
        return [int(step) for (step,) in rows]

    def forget_before(self, step: int, *, keep_bytes: int = 0) -> None:
        """Drop the bytes of groups trained on before a checkpoint at `step`, whose batches will not be replayed; but
        the newest updates', as many as fit in `keep_bytes`."""
        rows = self._db.execute(
            "SELECT g.used_step, SUM(LENGTH(g.raw) + COALESCE(LENGTH(g.behavior), 0) + COALESCE(b.size, 0))"
            " FROM groups AS g LEFT JOIN group_bodies AS b ON b.digest = g.digest"
            " WHERE g.raw IS NOT NULL AND g.used_step < ? GROUP BY g.used_step ORDER BY g.used_step DESC",
            (step,),
        ).fetchall()
        for used_step, size in rows:
            keep_bytes -= size
            if keep_bytes < 0:
                break
            step = used_step
        self._db.execute(
            "UPDATE groups SET raw = NULL, behavior = NULL, rewards = NULL WHERE state = ? AND used_step < ?"
            " AND raw IS NOT NULL",
            (GroupState.USED, step),
        )
