"""Ledger source of a board beside its learner, or beside a validator with a ledger of its own: reads its file alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from p2prl.errors import IntegrityError, P2PRLError, RemoteProtocolError
from p2prl.protocol.ledger_chain import entry_digest
from p2prl.scoreboard.ledger.journal_reader import JournalReader
from p2prl.scoreboard.ledger.known_run import open_run_manifest
from p2prl.scoreboard.ledger.ledger_sources import PaceOfRun, RanksOfRun, Snapshot
from p2prl.scoreboard.ledger.signed_head import SignedHead, Witness, open_signed_head

_READ_AT_ONCE = 256
"""Entries per query: a long read would keep the learner from truncating its write-ahead log."""


class RunFolderSource:
    """Follows a journal as its learner or validator appends to it."""

    def __init__(
        self,
        journal: Path,
        manifest: bytes,
        *,
        validator: bytes = b"",
        join_link: Callable[[], str] = lambda: "",
        planned_updates: Callable[[], int | None] = lambda: None,
        offline_since: Callable[[], float | None] = lambda: None,
        evaluations: Callable[[], Sequence[Mapping[str, Any]]] = lambda: (),
        pace: Callable[[], PaceOfRun | None] = lambda: None,
        ranks: Callable[[], RanksOfRun | None] = lambda: None,
    ) -> None:
        """Verify the whole ledger. Raises `MachineError` when the journal cannot be read.

        `manifest` is the run manifest's envelope, `validator` as in `KnownRun`. `join_link` returns the newest link and
        is called for each snapshot, because peers come into it and go. So is `planned_updates`, which returns the
        learner's target, because a restarted learner may have another one; None means no end.
        `offline_since` returns the time of the learner's last report, seconds since 1970, if no learner runs now.
        `evaluations` returns its results, `pace` how much of its time it has groups, and `ranks` the processes it
        trains in. It has more than eight arguments because each is another part of the folder, read anew.
        """
        self._run = open_run_manifest(manifest, validator=validator)
        self._reader = JournalReader(journal)
        self._board = self._run.new_fold()
        self._join_link = join_link
        self._planned_updates = planned_updates
        self._offline_since = offline_since
        self._evaluations = evaluations
        self._pace = pace
        self._ranks = ranks
        self._head: SignedHead | None = None
        self._incident: str | None = None
        self._lock = threading.Lock()
        with self._lock:
            self._catch_up()

    def close(self) -> None:
        """Close the journal."""
        with self._lock:
            self._reader.close()

    def snapshot(self) -> Snapshot:
        """The journal as it is now. Raises `MachineError` when it can no longer be read."""
        with self._lock:
            self._catch_up()
            board, reported = self._board.state(), self._offline_since()
            newest_ms = board.newest_ms() or self._run.manifest.created_ms  # groups are checked between two reports
            planned, published_step = self._planned_updates(), self._reader.published_step()
            return Snapshot(
                run=self._run,
                board=board,
                policy_version=self._reader.policy_version(),
                learner_step=self._reader.step(),
                connected_peers=None,
                signed_height=None if self._head is None else self._head.height,
                signed_head=b"" if self._head is None else self._head.raw,
                finished=self._is_finished(planned, published_step),
                learner_offline_since=None if reported is None else max(reported, newest_ms / 1000),
                incident=self._incident,
                join_link=self._join_link(),
                total_steps=planned,
                evaluations=tuple(self._evaluations()),
                pace=self._pace(),
                ranks=self._ranks(),
            )

    def entries(self, from_height: int, limit: int) -> list[bytes]:
        """Verified entries from a height on."""
        with self._lock:
            return self._reader.entries(from_height, min(limit, max(0, self._board.height - from_height)))

    def witnesses(self) -> tuple[Witness, ...]:
        """None: a learner's journal keeps no countersignatures."""
        return ()

    def failure(self) -> P2PRLError | None:
        """None: a journal that cannot be read now may be readable later."""
        return None

    def _is_finished(self, planned: int | None, published_step: int | None) -> bool:
        if self._run.validator:
            return self._head is not None and self._head.finished
        return planned is not None and published_step is not None and published_step >= planned

    def _catch_up(self) -> None:
        raw_head = self._reader.signed_head()  # before the entries: they may only be newer than it
        while self._incident is None and (entries := self._reader.entries(self._board.height, _READ_AT_ONCE)):
            for raw in entries:
                try:
                    self._board.follow(raw)
                except (IntegrityError, RemoteProtocolError) as error:
                    self._incident = f"entry {self._board.height} of the ledger is broken: {error}"
                    return
        if self._incident is None and raw_head and (self._head is None or raw_head != self._head.raw):
            self._compare(open_signed_head(self._run, raw_head))

    def _compare(self, head: SignedHead) -> None:
        """Hold the journal to its signed head: entries may be missing from it, or replaced."""
        newest = self._reader.entries(head.height - 1, 1) if head.height else []
        fault = head.missing(self._board.height) or (
            head.contradiction(head.height, entry_digest(newest[0])) if newest else ""
        )
        if fault:
            self._incident = fault
        else:
            self._head = head
