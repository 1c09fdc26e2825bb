"""Read-only access to the groups that a run has trained on, as long as its journal has their bytes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from p2prl.errors import MachineError
from p2prl.learner.journal.groups import GroupTable, PolicyTable, StoredGroup
from p2prl.learner.journal.kept_rollouts import BatchTable
from p2prl.protocol.envelope import body_of, open_envelope
from p2prl.protocol.manifests import PolicyManifest


class KeptRollouts:
    """The kept groups of one journal, by update. In WAL mode a reader never blocks the learner that writes."""

    def __init__(self, path: Path) -> None:
        """Raises `MachineError` when there is no journal at `path`. Close it."""
        self._path = path
        with self._readable():
            self._db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None)
            self._db.execute("SELECT digest FROM groups LIMIT 1")
        self._groups, self._batches, self._policies = GroupTable(self._db), BatchTable(self._db), PolicyTable(self._db)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def steps(self) -> list[int]:
        """Steps at which the updates began whose groups are kept, in order."""
        with self._readable():
            return self._batches.kept_steps()

    def batch(self, step: int) -> list[StoredGroup]:
        """The groups of an update in the order of training; without those that a learner beside has just dropped."""
        with self._readable():
            digests = self._batches.at_step(step) or []
            return [group for group in self._groups.by_digest(digests) if group.raw]

    def groups_at(self, step: int) -> int:
        """Number of groups that an update was trained on, kept or not."""
        with self._readable():
            return len(self._batches.at_step(step) or ())

    def policy(self, version: int) -> PolicyManifest:
        """The manifest of a version that the run published."""
        with self._readable():
            raw = self._policies.of_version(version)
        assert raw is not None, "a group is trained on only if its policy was published"
        return body_of(open_envelope(raw, now=None), PolicyManifest)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise MachineError(
                f"the journal {self._path} cannot be read: {error}",
                remedy="Use a run folder whose learner has been started at least once with this release.",
            ) from error
