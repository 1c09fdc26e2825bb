"""A listed run's ledger, read from its board over HTTP: stored, verified as a board in the swarm does, and counted.

A board is asked for entries up to the newest head that the run's learner signed, and for no others, so a board can
withhold and nothing more: what it invents fits no head. What was stored is not asked for again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from p2prl.errors import RemoteProtocolError
from p2prl.index.board_client import MAX_PAGE_BYTES, BoardClient
from p2prl.index.people_totals import RunPart, contributions
from p2prl.index.public_web import AnswerTooLongError
from p2prl.protocol import limits
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import open_envelope
from p2prl.protocol.identity import peer_id_of
from p2prl.quantity_text import size_text
from p2prl.scoreboard.ledger.known_run import KnownRun, open_run_manifest
from p2prl.scoreboard.ledger.ledger_store import LedgerStore
from p2prl.scoreboard.ledger.verified_ledger import VerifiedLedger


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLimits:
    """What one run may take of an index."""

    look_bytes: int
    """Read from its board in one look."""
    run_bytes: int
    """Entries of its ledger on disk. Their totals take a few times that of memory."""


class FollowedRun:
    """One run. One thread at a time may use it."""

    def __init__(self, path: Path, run: Digest, bounds: RunLimits, *, manifest: bytes = b"") -> None:
        """Open or create the file of its ledger, and verify what is stored. `manifest` may be empty for a file that has
        it. Raises as `LedgerStore` and `open_run_manifest`."""
        self._bounds = bounds
        self._store = LedgerStore(path, run=run)
        self.run: KnownRun = open_run_manifest(manifest or self._store.manifest)
        self._store.keep_manifest(self.run.raw)
        self._ledger = VerifiedLedger(self._store, self.run)
        self._at_once = limits.MAX_LEDGER_ENTRIES_PER_REPLY
        for head in self._store.heads():
            self._ledger.add_head(open_envelope(head, now=None))
        self._ledger.replay()

    def close(self) -> None:
        """Close its file."""
        self._store.close()

    def look(self, board: BoardClient, *, has_room: Callable[[], bool] = lambda: True) -> str:
        """Ask its board once for what is new. Returns why its ledger is not whole, as a sentence; empty when it is.

        Raises `UnreachableError` for a board that gives no answer of the kind, `RemoteProtocolError` for a head that
        another key signed. `has_room` says before each page whether the disk may take more.
        """
        known = self.incident
        if known:
            return known
        raw = board.signed_head()
        if not raw:
            return "its board has no head that the learner signed yet"
        opened = open_envelope(raw, now=None)
        self._ledger.add_head(opened)
        fault = self._read_up_to(board, has_room)
        while self._ledger.advance():
            pass
        return self.incident or fault

    @property
    def incident(self) -> str:
        """Proof that the learner signed two histories, as a sentence; empty while there is none."""
        return self._store.incident or ""

    @property
    def version(self) -> tuple[object, ...]:
        """What `part` follows from: it is another part when this is another version."""
        return self._ledger.height, self._ledger.confirmed, self.incident

    def part(self) -> RunPart:
        """Its people by the entries that are proven and counted."""
        state, manifest, head = self._ledger.state(), self.run.manifest, self._ledger.confirmed
        return RunPart(
            run=self.run.run,
            name=manifest.name,
            owner=peer_id_of(manifest.learner),
            parameters=manifest.parameters,
            height=self._ledger.height,
            is_finished=head is not None and head.finished,
            incident=self.incident,
            people={} if state is None else contributions(state),
        )

    def _read_up_to(self, board: BoardClient, has_room: Callable[[], bool]) -> str:
        left, asks = self._bounds.look_bytes, True
        while asks and self._ledger.next_height < self._ledger.signed_height:
            if not has_room():
                return "this index has no room for more of its ledger"
            if left <= 0:
                return "its ledger is being read"
            height = self._ledger.next_height
            try:
                page = board.entries(height, self._at_once)
            except AnswerTooLongError:
                if self._at_once == 1:
                    raise
                self._at_once, left = self._at_once // 2, left - MAX_PAGE_BYTES
                continue
            left -= page.size_bytes
            if self._store.size_bytes + sum(map(len, page.entries)) > self._bounds.run_bytes:
                return f"its ledger has more than {size_text(self._bounds.run_bytes)}; the rest is not read"
            asks = self._ledger.append(height, page.entries)
        if self._ledger.next_height < self._ledger.signed_height:
            raise RemoteProtocolError("its board gives entries that its learner did not sign")
        return ""
