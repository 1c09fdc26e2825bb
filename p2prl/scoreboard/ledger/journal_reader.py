"""Read-only access to the journal of a learner, or a validator's own ledger, for a board beside it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from p2prl.errors import MachineError
from p2prl.scoreboard.ledger.ledger_store import read_entries

_T = TypeVar("_T")


class JournalReader:
    """A journal, opened read-only: in WAL mode a reader never blocks the writer. One without policies and batches is a
    validator's own ledger."""

    def __init__(self, path: Path) -> None:
        """Raises `MachineError` when there is no journal at `path`."""
        self._path = path
        try:
            self._db = sqlite3.connect(
                f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
            )
            self._db.execute("SELECT height FROM ledger LIMIT 1").fetchone()
        except sqlite3.Error as error:
            raise MachineError(
                f"there is no readable journal at {path}: {error}",
                remedy="Use a run folder whose learner has been started at least once.",
            ) from error

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def entries(self, from_height: int, limit: int) -> list[bytes]:
        """Consecutive ledger entries from a height on."""
        return self._read(lambda: read_entries(self._db, from_height, limit))

    def signed_head(self) -> bytes:
        """The learner's newest signed head, or nothing: a journal of an older release keeps none."""
        rows = self._rows_if_there("ledger_head", "SELECT raw FROM ledger_head")
        return bytes(rows[0][0]) if rows else b""

    def policy_version(self) -> int | None:
        """Newest version the learner signed."""
        return self._number_if_there("policies", "SELECT MAX(version) FROM policies")

    def published_step(self) -> int | None:
        """Learner step of the newest published version. The learner publishes its last step before it exits."""
        return self._number_if_there("policies", "SELECT MAX(step) FROM policies")

    def step(self) -> int | None:
        """Updates the learner has begun, including the current one; None before the first."""
        return self._number_if_there("batches", "SELECT MAX(step) + 1 FROM batches")

    def policy_at(self, step: int) -> bytes | None:
        """The envelope of the policy manifest published at a step, if any."""
        rows = self._read(lambda: self._db.execute("SELECT raw FROM policies WHERE step = ?", (step,)).fetchall())
        return bytes(rows[0][0]) if rows else None

    def versions_until(self, step: int) -> int:
        """Number of versions published up to a step."""
        query = "SELECT COUNT(*) FROM policies WHERE step <= ?"
        return int(self._read(lambda: self._db.execute(query, (step,)).fetchall())[0][0])

    def _number_if_there(self, table: str, query: str) -> int | None:
        rows = self._rows_if_there(table, query)
        return None if not rows or rows[0][0] is None else int(rows[0][0])

    def _rows_if_there(self, table: str, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query; none where the file has no such table."""
        named = "SELECT 1 FROM sqlite_master WHERE name = ?"
        if not self._read(lambda: self._db.execute(named, (table,)).fetchall()):
            return []
        return self._read(lambda: self._db.execute(query).fetchall())

    def _read(self, query: Callable[[], list[_T]]) -> list[_T]:
        try:
            return query()
        except sqlite3.Error as error:
            raise MachineError(
                f"the journal {self._path} cannot be read: {error}", remedy="Run the command again."
            ) from error
