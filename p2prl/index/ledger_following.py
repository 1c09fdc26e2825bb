"""Following of ledgers: an index asks the boards of listed runs for what is new, and keeps what it has verified.

HOME/index/RUN.db   a run's ledger, as a board in the swarm stores it

Each run has a thread of its own, as each mirrored index has, so that a board which hangs holds up nobody else's. A
ledger of a run that is not listed any more stays: what people gave to it is theirs.
"""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from p2prl.errors import P2PRLError
from p2prl.index.board_client import BoardClient
from p2prl.index.followed_run import FollowedRun
from p2prl.index.index_state import IndexState
from p2prl.index.ledger_choice import LedgerLimits, chosen_rows
from p2prl.index.listing_table import Row
from p2prl.index.public_web import PublicWeb
from p2prl.protocol.digests import DIGEST_BYTES, Digest
from p2prl.protocol.listing import run_id

LOOK_S = 30.0
"""Time between two looks at a board."""

CHOOSE_S = 5.0
"""Time between two looks at the listings."""

_STOP_S = 1.0
"""For which the end waits for threads that are between two requests, all together."""

_FAULTS = (P2PRLError, OSError, sqlite3.Error)
"""Of a file of a ledger."""

_ENDING = ".db"
_NAME = re.compile(f"[0-9a-f]{{{2 * DIGEST_BYTES}}}")


class LedgerFollowing:
    """Follows ledgers while the index runs."""

    def __init__(self, state: IndexState, folder: Path, web: PublicWeb, limits: LedgerLimits | None = None) -> None:
        self._state = state
        self._people = state.people
        self._folder = folder
        self._web = web
        self._limits = limits or LedgerLimits()
        self._ended = threading.Event()
        self._followers: dict[Digest, _Follower] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; a request in progress ends by its own deadline."""
        self._ended.set()
        followers = list(self._followers.values())
        for follower in followers:
            follower.ended.set()
        deadline = time.monotonic() + _STOP_S
        for thread in (self._thread, *(follower.thread for follower in followers)):
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))

    def load(self) -> None:
        """Verify and count the ledgers that are stored, of runs that nobody lists now too."""
        for run, path in self._stored():
            if self._ended.is_set():
                return
            self._load(run, path)

    def choose(self) -> None:
        """Follow the ledgers of the runs that are listed now, and no others."""
        rows = {row.kept.opened.run: row for row in chosen_rows(self._state.rows(), self._people.owners, self._limits)}
        for run, follower in list(self._followers.items()):
            if run not in rows:
                follower.ended.set()
            if not follower.thread.is_alive():
                del self._followers[run]
        for run, row in rows.items():
            if run in self._followers:
                self._followers[run].board = row.kept.opened.listing.board
            else:
                self._followers[run] = follower = _Follower(row, self._follow)
                follower.thread.start()
        self._forget_others()

    def _run(self) -> None:
        self.load()
        while not self._ended.is_set():
            self.choose()
            self._ended.wait(CHOOSE_S)

    def _load(self, run: Digest, path: Path) -> None:
        try:
            with closing(FollowedRun(path, run, self._limits.counted)) as followed:
                self._people.note(followed.part())
        except _FAULTS as error:
            self._people.ledgers[run_id(run)] = str(error)

    def _follow(self, follower: _Follower) -> None:
        kept = follower.row.kept
        bounds = self._limits.of(counts=kept.opened.owner in self._people.owners)
        run = kept.opened.run
        try:
            with closing(FollowedRun(self._path(run), run, bounds, manifest=kept.manifest)) as followed:
                self._people.note(followed.part())
                while not follower.ended.is_set():
                    self._look(followed, follower)
                    follower.ended.wait(LOOK_S)
        except _FAULTS as error:
            self._people.ledgers[run_id(run)] = str(error)
            follower.ended.wait(LOOK_S)

    def _look(self, followed: FollowedRun, follower: _Follower) -> None:
        def has_room() -> bool:
            return not follower.ended.is_set() and self._disk_bytes() < self._limits.disk_bytes

        before = followed.version
        try:
            fault = followed.look(BoardClient(self._web, follower.board), has_room=has_room)
        except P2PRLError as error:
            fault = str(error)
        if followed.version != before:
            self._people.note(followed.part())
        if not follower.ended.is_set():
            self._people.ledgers[run_id(followed.run.run)] = fault or "ok"

    def _forget_others(self) -> None:
        """Delete ledgers that do not count beyond their number, those first that have not changed for longest."""
        files = {run: path for run, path in self._stored() if run in self._people.others()}
        spare = len(files) - self._limits.other_runs
        for run in sorted(files.keys() - self._followers.keys(), key=lambda run: files[run].stat().st_mtime):
            if spare <= 0:
                return
            for path in self._folder.glob(f"{files[run].name}*"):
                path.unlink(missing_ok=True)
            self._people.drop(run)
            spare -= 1

    def _stored(self) -> list[tuple[Digest, Path]]:
        found = sorted(self._folder.glob("*" + _ENDING))
        return [(Digest(bytes.fromhex(path.stem)), path) for path in found if _NAME.fullmatch(path.stem)]

    def _path(self, run: Digest) -> Path:
        return self._folder / (run.hex() + _ENDING)

    def _disk_bytes(self) -> int:
        found = 0
        for path in self._folder.iterdir():
            with suppress(FileNotFoundError):  # SQLite deletes one beside each file that is closed
                found += path.stat().st_size
        return found


class _Follower:
    """A run that is followed, and the thread that does."""

    def __init__(self, row: Row, follow: Callable[[_Follower], None]) -> None:
        self.row = row
        self.board = row.kept.opened.listing.board
        """As the newest listing has it."""
        self.ended = threading.Event()
        self.thread = threading.Thread(target=follow, args=(self,), daemon=True)
