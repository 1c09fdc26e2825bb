"""A board in the swarm as a state machine: which entries to believe, what to ask for, what to answer.

An entry proves who signed what, not that the learner's history holds it: a stranger's verdict fits any chain. Only a
signed `LedgerHead` settles that. So entries are shown as they arrive, every head of the learner is compared with the
chain, and a chain that a head contradicts is cut back to the last height a head confirmed and asked for again.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.errors import IntegrityError, RemoteProtocolError
from p2prl.net.process import control
from p2prl.protocol import limits
from p2prl.protocol.envelope import Opened, body_of, open_envelope
from p2prl.protocol.ledger_chain import entry_digest, page_of
from p2prl.protocol.ledger_messages import LedgerHead
from p2prl.protocol.run_end import RunEnd
from p2prl.scoreboard.ledger_fold import Board
from p2prl.scoreboard.ledger_sources import KnownRun, Snapshot, open_run
from p2prl.scoreboard.ledger_store import LedgerStore

ASK_S = 5.0
"""Seconds between questions while nothing happens; news is asked after at once."""

_HASTE_S = 1 / limits.MAX_LEDGER_QUERIES_PER_S
"""Shortest time between two questions: a burst of receipts asks once, and nobody is asked more than it answers."""

_HEADS_AHEAD = 64
"""Signed heads remembered while their height is not reached yet; the newest are kept."""

_READ_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class _SignedHead:
    height: int
    head: bytes
    raw: bytes
    sent_ms: int
    finished: bool


class Follower:
    """Follows one run's ledger. The owner feeds messages and sends what comes back."""

    def __init__(self, store: LedgerStore, *, run: bytes, join_link: str = "") -> None:
        self._store = store
        self._run_digest = run
        self._join_link = join_link
        self._run: KnownRun | None = None
        self._board: Board | None = None
        self._heads: dict[int, _SignedHead] = {}
        self._signed: _SignedHead | None = None
        self._farewell = RunEnd()
        self._now = 0.0
        self._incident = store.incident
        self._policy_version: int | None = None
        self._learner_step: int | None = None
        self._neighbours: dict[str, int] = {}
        self._ask_at = 0.0
        self._asked_at = -_HASTE_S
        if store.manifest:
            self._begin(store.manifest)

    # --- what the owner does -----------------------------------------------------------------------------------

    def receive(self, message: control.FromNetwork, now: float) -> list[control.ToNetwork]:
        """One message of the network process; returns what to send it. `now` is seconds since the epoch."""
        self._now = now
        match message:
            case control.RunKnown(manifest=raw):
                return self._on_manifest(raw)
            case control.VersionAnnounced(version=version, step=step):
                self._policy_version = max(version, self._policy_version or 0)
                self._learner_step = max(step, self._learner_step or 0)
                self._farewell.on_policy(step)
            case control.Status(peers=peers):
                self._neighbours = dict(peers)
            case control.EnvelopeArrived(envelope=raw):
                self._on_envelope(open_envelope(raw, now=None), now)
            case control.LedgerArrived(from_height=height, entries=entries):
                return self._on_page(height, entries, now)
            case control.LedgerWanted(peer=peer, from_height=height):
                entries = page_of(self._store.entries(height, limits.MAX_LEDGER_ENTRIES_PER_REPLY))
                return [control.SendLedger(peer, height, entries)]
            case _:
                pass
        return []

    def handle_timer(self, now: float) -> list[control.ToNetwork]:
        """Ask for what follows, when it is time to."""
        self._now = now
        if self._board is None or now < max(self._ask_at, self._asked_at + _HASTE_S):
            return []
        self._asked_at, self._ask_at = now, now + ASK_S
        return [control.AskLedger(self._board.height)]

    def introduce(self) -> list[control.ToNetwork]:
        """What a fresh network process must know: what can be served, and a farewell that nobody else may remember."""
        signed = self._signed
        is_farewell = signed is not None and signed.finished and self._farewell.is_announced
        return [*self._serve(), *([control.Publish(signed.raw)] if signed is not None and is_farewell else [])]

    def _serve(self) -> list[control.ToNetwork]:
        return [control.SetLedgerHeight(self._board.height)] if self._board is not None else []

    def snapshot(self) -> Snapshot:
        """What the pages show."""
        return Snapshot(
            run=self._run,
            board=None if self._board is None else self._board.state(),
            policy_version=self._policy_version,
            learner_step=self._learner_step,
            neighbours=dict(sorted(self._neighbours.items())),
            signed_height=None if self._signed is None else self._signed.height,
            signed_head=b"" if self._signed is None else self._signed.raw,
            finished=self._farewell.is_over(self._now),
            incident=self._incident,
            join_link=self._join_link,
            total_steps=None,
        )

    # --- the run -----------------------------------------------------------------------------------------------

    def _on_manifest(self, raw: bytes) -> list[control.ToNetwork]:
        if self._board is None:
            self._begin(raw)
            self._store.keep_manifest(raw)
        return self._serve()

    def _begin(self, raw: bytes) -> None:
        run = open_run(raw)
        if run.run != self._run_digest:
            raise RemoteProtocolError("run manifest does not match the join link")
        self._run = run
        self._board = run.empty_board()
        for head in self._store.heads():
            opened = open_envelope(head, now=None)
            self._note_head(opened, opened.sent_ms / 1000)  # it was believed when it came
        self._replay()

    def _replay(self) -> None:
        """Fold the store from where the board stands, and drop what does not verify."""
        assert self._board is not None
        while entries := self._store.entries(self._board.height, _READ_AT_ONCE):
            for raw in entries:
                if self._contradicted(raw):
                    self._cut_back()
                    return
                if not self._follow(raw):
                    self._store.truncate(self._board.height)
                    return

    # --- entries -----------------------------------------------------------------------------------------------

    def _on_page(self, from_height: int, entries: tuple[bytes, ...], now: float) -> list[control.ToNetwork]:
        if self._board is None or from_height > self._board.height:
            return []
        before = self._board.height
        taken: list[bytes] = []
        false_history = False
        for raw in entries[before - from_height :]:
            false_history = self._contradicted(raw)
            if false_history or not self._follow(raw):
                break
            taken.append(raw)
        if taken:
            self._store.append(before, taken)
            self._ask_at = now  # there may be more
        if false_history:
            self._cut_back()
        return self._serve() if self._board.height != before else []

    def _contradicted(self, raw: bytes) -> bool:
        """Whether a signed head says that another entry stands in this place."""
        assert self._board is not None
        expected = self._heads.get(self._board.height + 1)
        return expected is not None and expected.head != entry_digest(raw)

    def _follow(self, raw: bytes) -> bool:
        """Fold one entry in; False when it does not follow."""
        assert self._board is not None
        try:
            self._board.follow(raw)
        except (IntegrityError, RemoteProtocolError):
            return False
        if (head := self._heads.get(self._board.height)) is not None:
            self._confirm(head)
        return True

    def _cut_back(self) -> None:
        """Entries past the last confirmed height are not the learner's: forget them."""
        assert self._run is not None
        height = 0 if self._signed is None else self._signed.height
        self._store.truncate(height)
        self._board = self._run.empty_board()
        self._replay()

    # --- signed heads ------------------------------------------------------------------------------------------

    def _on_envelope(self, opened: Opened, now: float) -> None:
        if isinstance(opened.body, LedgerHead):
            self._note_head(opened, now)
        self._ask_at = min(self._ask_at, now)

    def _note_head(self, opened: Opened, now: float) -> None:
        body = body_of(opened, LedgerHead)
        if self._run is None:
            return
        if opened.author != self._run.manifest.learner or opened.run != self._run.run or body.height < 1:
            raise RemoteProtocolError("ledger head: not this run's learner's")
        self._farewell.on_head(body, opened.sent_ms, now=now)
        self._learner_step = max(body.step, self._learner_step or 0)
        head = _SignedHead(body.height, body.head, opened.raw, opened.sent_ms, body.finished)
        known = self._heads.setdefault(body.height, head)
        if known.head != head.head:
            self._report(f"the learner signed two different histories of {body.height} ledger entries")
            return
        if head.sent_ms > known.sent_ms:  # the farewell often repeats the head before it
            known = self._heads[body.height] = head
        self._check_against_chain(known)
        while len(self._heads) > _HEADS_AHEAD:
            del self._heads[min(self._heads)]

    def _check_against_chain(self, head: _SignedHead) -> None:
        assert self._board is not None
        if head.height > self._board.height:
            return
        held = self._store.entries(head.height - 1, 1)
        if held and entry_digest(held[0]) == head.head:
            self._confirm(head)
        elif self._signed is not None and head.height <= self._signed.height:
            self._report(f"the learner signed a history of {head.height} ledger entries that contradicts a later one")
        else:
            self._cut_back()

    def _confirm(self, head: _SignedHead) -> None:
        if self._signed is None or (head.height, head.sent_ms) > (self._signed.height, self._signed.sent_ms):
            self._signed = head
            self._store.keep_head(head.height, head.raw)

    def _report(self, message: str) -> None:
        self._incident = self._incident or message
        self._store.keep_incident(message)
