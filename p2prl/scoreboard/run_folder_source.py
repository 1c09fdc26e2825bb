"""A board beside its learner: reads the run folder's journal and never writes to it."""

from __future__ import annotations

import threading
from pathlib import Path

from p2prl.errors import IntegrityError, P2PRLError, RemoteProtocolError
from p2prl.scoreboard.ledger_sources import Snapshot, open_run
from p2prl.scoreboard.ledger_store import JournalReader

_READ_AT_ONCE = 256
"""Entries per query: a long read would keep the learner from tidying its write-ahead log."""


class RunSource:
    """Follows `journal.db` as its learner appends to it."""

    def __init__(self, journal: Path, manifest: bytes, *, join_link: str = "", total_steps: int | None = None) -> None:
        """`manifest` is the run manifest's envelope, `total_steps` the learner's plan when it is known.

        Verifies the whole ledger before it returns. Raises `MachineError` when the journal cannot be read.
        """
        self._run = open_run(manifest)
        self._reader = JournalReader(journal)
        self._board = self._run.empty_board()
        self._join_link = join_link
        self._total_steps = total_steps
        self._incident: str | None = None
        self._lock = threading.Lock()
        with self._lock:
            self._catch_up()

    def close(self) -> None:
        """Let go of the journal."""
        with self._lock:
            self._reader.close()

    def snapshot(self) -> Snapshot:
        """The journal as it is now. Raises `MachineError` when it can no longer be read."""
        with self._lock:
            self._catch_up()
            step = self._reader.step()
            return Snapshot(
                run=self._run,
                board=self._board.state(),
                policy_version=self._reader.policy_version(),
                learner_step=step,
                neighbours=None,
                signed_height=None,
                signed_head=b"",
                finished=self._total_steps is not None and step is not None and step >= self._total_steps,
                incident=self._incident,
                join_link=self._join_link,
                total_steps=self._total_steps,
            )

    def entries(self, from_height: int, limit: int) -> list[bytes]:
        """Verified entries from a height on."""
        with self._lock:
            return self._reader.entries(from_height, min(limit, max(0, self._board.height - from_height)))

    def failure(self) -> P2PRLError | None:
        """Nothing ends a journal."""
        return None

    def _catch_up(self) -> None:
        while self._incident is None and (entries := self._reader.entries(self._board.height, _READ_AT_ONCE)):
            for raw in entries:
                try:
                    self._board.follow(raw)
                except (IntegrityError, RemoteProtocolError) as error:
                    self._incident = f"entry {self._board.height} of the ledger is broken: {error}"
                    return
