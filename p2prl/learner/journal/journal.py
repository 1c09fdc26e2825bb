"""Crash-safe record of a run in one SQLite file: groups, slots, batches, policies, the ledger, and forgeries.

Everything is written here before it is acted on: a group before its storage receipt, a batch before its update, a
manifest before it is published, a receipt before it is gossiped. After SIGKILL the updates since the last
checkpoint are computed again from the recorded batches. So training resumes at the exact step with the same parameters,
no group is trained on twice, and no second manifest is ever signed for a version.
"""

from __future__ import annotations

import sqlite3
from contextlib import AbstractContextManager
from pathlib import Path

from p2prl.databases import open_database
from p2prl.disk_full import write_error
from p2prl.errors import MachineError
from p2prl.learner.journal import groups, peers, verdicts
from p2prl.learner.journal.groups import GroupTable, PolicyTable
from p2prl.learner.journal.kept_rollouts import BatchTable
from p2prl.learner.journal.peers import ForgeryTable, SlotAccountTable, StatementTable
from p2prl.learner.journal.verdicts import VerdictTable
from p2prl.net.storage import ledger_table
from p2prl.net.storage.ledger_table import LedgerTable

_SCHEMA = "".join(table.SCHEMA for table in (groups, ledger_table, peers, verdicts))


class Journal:
    """The journal of one run. One process writes it; others may read."""

    def __init__(self, path: Path) -> None:
        try:
            self._db = open_database(path, synchronous="FULL")
            # In one transaction: each statement alone would write its pages to the log again, and flush the disk.
            self._db.executescript(f"BEGIN;{_SCHEMA}COMMIT;")
            self.groups = GroupTable(self._db)
            self.slot_accounts = SlotAccountTable(self._db)
            self.batches = BatchTable(self._db)
            self.policies = PolicyTable(self._db)
            self.ledger = LedgerTable(self._db)
            self.statements = StatementTable(self._db, self.ledger)
            self.forgeries = ForgeryTable(self._db)
            self.verdicts = VerdictTable(self._db)
        except (OSError, sqlite3.Error) as error:
            raise MachineError(
                f"cannot open the journal {path}: {error}", remedy="Free some space or fix the directory's permissions."
            ) from error

    def close(self) -> None:
        """Close the database; everything is already on disk."""
        self._db.close()

    @property
    def changes(self) -> int:
        """Rows written since the start: a number that grows with every change."""
        return self._db.total_changes

    def copy_to(self, path: Path) -> None:
        """Write a consistent copy as one file, page by page, so that unchanged parts stay at their place.

        Raises `MachineError`."""
        try:
            path.unlink(missing_ok=True)
            target = sqlite3.connect(path)
            try:
                self._db.backup(target)
            finally:
                target.close()
        except (OSError, sqlite3.Error) as error:
            raise write_error(error, f"the copy of the journal {path}") from error

    def transaction(self) -> AbstractContextManager[None]:
        """Write all or nothing, with one flush to disk for everything inside."""
        return self.ledger.transaction("the journal")
