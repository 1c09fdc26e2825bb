"""The learner's side of following: takes copies, answers its standby learner, and lets through what that holds.

One standby at a time. The learner takes the next copy when the standby holds the one before and something has changed.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from p2prl.clock import Clock
from p2prl.disk_full import replace_file, write_error
from p2prl.errors import MachineError
from p2prl.learner.following.copy_list import CopyHead, CopyList, piece_span, write_list
from p2prl.learner.following.copy_taking import CopyTaker
from p2prl.learner.following.publication_gate import PROMOTED_WAIT_S, START_WAIT_S, PublicationGate
from p2prl.learner.learner_paths import LearnerPaths
from p2prl.learner.storage import LearnerStorage
from p2prl.learner.timing.stages import Stage
from p2prl.net.process import control
from p2prl.protocol.digests import chunk_digest
from p2prl.protocol.wire_codec import encode
from p2prl.swarm import signals
from p2prl.swarm.following import FOLLOW_PIECE_BYTES

_PROMOTED = b"promoted"
"""What that file says in a folder that was promoted and has not been started since."""

_START_BITS, _COUNT_BITS = 30, 22
"""The number of a copy is a random one of the learner's start, and a count: copies of two starts never share one."""

_IN_STEP = "in-step"
"""File that is there while a standby keeps step: then nobody has seen what the standby lacks."""


@dataclass(frozen=True, slots=True)
class _Copy:
    """A copy that can be fetched."""

    head: CopyHead
    raw_list: bytes
    listed: CopyList


class Followed:
    """Serves a standby learner, and holds messages back for it."""

    def __init__(self, storage: LearnerStorage, clock: Clock, stage: Stage, on_notice: Callable[[str], None]) -> None:
        """`stage` reads copies to name their pieces."""
        self._folder = storage.paths.following
        self._storage = storage
        self._clock = clock
        self._stage = stage
        self._on_notice = on_notice
        self._taker = CopyTaker(storage.paths, storage.journal, on_notice)
        wait_s = _wait_at_start(self._folder / _IN_STEP)
        self._gate: PublicationGate[control.ToNetwork] = PublicationGate(clock.now(), wait_s=wait_s)
        if wait_s:
            on_notice(f"nothing is published before a standby learner has it, or {wait_s:.0f} s have passed")
        self._is_writing: Callable[[], bool] = lambda: False
        self._is_noted = False
        """Whether it is on disk that the standby keeps step."""
        self._follower = ""
        self._copies = _Copies(next=secrets.randbits(_START_BITS) << _COUNT_BITS)
        self._released: list[control.ToNetwork] = []

    @property
    def ledger_height(self) -> int:
        """Entries of the ledger that may be served."""
        return self._copies.held_height if self._gate.holds else self._storage.journal.ledger.height

    @property
    def holds_messages(self) -> bool:
        """Whether messages wait for the standby."""
        return self._gate.held > 0

    @property
    def figures(self) -> dict[str, float]:
        """State of the standby, as keys of the metrics log; none before one has followed."""
        if not self._copies.sent_bytes:
            return {}
        return {
            "standby_learner/in_step": float(self._gate.keeps_step),
            "standby_learner/sent_bytes": float(self._copies.sent_bytes),
            "standby_learner/held_messages": float(self._gate.held),
        }

    def passes(self, message: control.ToNetwork) -> bool:
        """Whether a message may be sent now; else it is among those of a later `take_released`."""
        first_copy = self._copies.first_with(self._storage.journal.changes)
        return self._gate.passes(message, copy=first_copy, now=self._clock.now())

    def take_released(self) -> list[control.ToNetwork]:
        """Answers, and messages that need not wait any more."""
        released, self._released = self._released, []
        return released

    def on_wanted(self, wanted: signals.FollowWanted) -> None:
        """Answer a standby whose permit was checked."""
        now, copy = self._clock.now(), self._copies.newest
        if self._follower not in ("", wanted.peer) and not self._gate.is_silent(now):
            return
        self._follower = wanted.peer
        self._gate.asked(now)
        if copy is not None and wanted.held == copy.head.number > self._gate.confirmed:
            self._confirm(copy, now)
        if copy is None or wanted.copy != copy.head.number:
            self._answer_head(wanted, copy)
        else:
            self._answer_piece(wanted, copy)

    def wait_while(self, is_writing: Callable[[], bool]) -> None:
        """Take no copy while a version is being written."""
        self._is_writing = is_writing

    def turn(self, *, step: int) -> None:
        """Take the next copy if it is wanted."""
        if self._gate.is_left_behind(self._clock.now()):
            self._go_on_alone()
        for copy in self._stage.take():
            self._copies.newest = copy
        if self._copies.is_due and not self._stage.busy and not self._is_writing():
            self._begin_copy(step)

    def close(self) -> None:
        """End the thread."""
        self._stage.close()

    def _confirm(self, copy: _Copy, now: float) -> None:
        """The standby holds a copy. That it keeps step is written down before messages leave that waited for it."""
        # What has left without it is public: it need not be held back a second time.
        is_first = not self._gate.holds
        self._copies.held_height = self._storage.journal.ledger.height if is_first else copy.head.height
        released = self._gate.confirm(copy.head.number, now, next_copy=self._copies.next)
        if self._gate.keeps_step and not self._is_noted:
            self._note_step(keeps=True)
            self._on_notice(f"a standby learner keeps step from step {copy.head.step:,} on")
        self._released += released

    def _go_on_alone(self) -> None:
        """Leave the standby behind. That is written down before the first message that it lacks is sent."""
        self._note_step(keeps=False)
        if self._follower:
            lags = "publishing goes on without it, and until it has caught up it cannot take over"
            self._on_notice(f"the standby learner does not keep step: {lags}")
        else:
            self._on_notice("no standby learner has asked: publishing goes on without one")
        self._follower = ""
        self._copies.forget()
        shutil.rmtree(self._folder / "copy", ignore_errors=True)
        self._released += self._gate.open()

    def _note_step(self, *, keeps: bool) -> None:
        self._is_noted = keeps
        try:
            if keeps:
                replace_file(self._folder / _IN_STEP, b"")
            else:
                (self._folder / _IN_STEP).unlink(missing_ok=True)
        except OSError as error:
            raise write_error(error, self._folder / _IN_STEP) from error

    def _answer_head(self, wanted: signals.FollowWanted, copy: _Copy | None) -> None:
        """Name the newest copy, or nothing yet: the standby asks again."""
        is_held = copy is not None and wanted.held == copy.head.number
        if copy is None:
            self._copies.is_due = True
        elif is_held:
            is_current = self._copies.is_current(self._storage.journal.changes)
            self._copies.is_due = bool(self._gate.held) or not self._gate.keeps_step or not is_current
        data = b"" if copy is None or is_held else encode(copy.head)
        number = 0 if copy is None else copy.head.number
        self._released.append(signals.SendFollow(wanted.peer, number, -1, -1, data))

    def _answer_piece(self, wanted: signals.FollowWanted, copy: _Copy) -> None:
        files = copy.listed.files
        if wanted.file == -1 and wanted.piece >= 0:
            begin, length = piece_span(len(copy.raw_list), wanted.piece)
            data = copy.raw_list[begin : begin + max(0, length)]
        elif 0 <= wanted.file < len(files) and 0 <= wanted.piece < files[wanted.file].count:
            data = self._read(files[wanted.file].path, wanted.piece)
        else:
            return
        self._copies.sent_bytes += len(data)
        self._released.append(signals.SendFollow(wanted.peer, wanted.copy, wanted.file, wanted.piece, data))

    def _read(self, path: str, piece: int) -> bytes:
        with (self._folder / "copy" / path).open("rb") as file:
            file.seek(piece * FOLLOW_PIECE_BYTES)
            return file.read(FOLLOW_PIECE_BYTES)

    def _begin_copy(self, step: int) -> None:
        """Copy the run folder now, and name its pieces in the stage."""
        new, changes = self._folder / "copy.new", self._storage.journal.changes
        try:
            if not self._taker.take(new):
                return  # the next turn tries again
        except MachineError as error:  # training needs no copy: the standby is left behind
            self._copies.is_due = False
            if not self._copies.is_refused:
                self._on_notice(f"no copy for the standby learner: {error}. {error.remedy}")
            self._copies.is_refused = True
            return
        self._copies.is_refused = False
        shutil.rmtree(self._folder / "copy", ignore_errors=True)
        number = self._copies.begin(changes)
        draft = CopyHead(
            number=number,
            list_bytes=0,
            list_digest=b"",
            taken_ms=int(self._clock.now() * 1000),
            step=step,
            version=self._storage.version,
            height=self._storage.journal.ledger.height,
        )
        self._stage.start(partial(_named, self._taker, new.rename(self._folder / "copy"), draft))


@dataclass(slots=True)
class _Copies:
    """The newest copy, and which one the standby has."""

    next: int
    """Number of the next copy."""
    newest: _Copy | None = None
    """The copy that can be fetched."""
    is_due: bool = False
    """Whether the standby waits for the next one."""
    held_height: int = 0
    """Entries of the ledger in the newest copy that the standby holds."""
    sent_bytes: int = 0
    """Sent to standbys since the start."""
    is_refused: bool = False
    """Whether the last copy could not be written."""
    _changes: int = -1
    """`Journal.changes` when the newest copy was begun."""

    def begin(self, changes: int) -> int:
        """Count a copy; returns its number."""
        self.newest, self.is_due, self._changes = None, False, changes
        self.next += 1
        return self.next - 1

    def is_current(self, changes: int) -> bool:
        """Whether the journal is as it was in the newest copy."""
        return changes == self._changes

    def first_with(self, changes: int) -> int:
        """The first copy that contains the journal as it is now."""
        return self.next - 1 if self.is_current(changes) else self.next

    def forget(self) -> None:
        """Take the next copy anew."""
        self.newest, self.is_due, self._changes = None, False, -1


def promise_quiet_start(paths: LearnerPaths) -> None:
    """Have a promoted learner listen before it publishes: peers may know of more than its copy has."""
    replace_file(paths.following / _IN_STEP, _PROMOTED)


def _wait_at_start(in_step: Path) -> float:
    if not in_step.exists():
        return 0.0
    return PROMOTED_WAIT_S if in_step.read_bytes() == _PROMOTED else START_WAIT_S


def _named(taker: CopyTaker, folder: Path, draft: CopyHead) -> _Copy:
    listed = taker.list_of(folder)
    raw = write_list(listed)
    head = CopyHead(draft.number, len(raw), chunk_digest(raw), draft.taken_ms, draft.step, draft.version, draft.height)
    return _Copy(head, raw, listed)
