"""A swarm's ledger on this board: a stored chain, checked against the learner's signed heads.

Only a signed head proves that an entry belongs to the learner's history (`signed_head`). Entries are shown as they
arrive and every learner head is compared with the chain; a contradicted chain is cut back to the last confirmed height.
"""

from __future__ import annotations

from collections.abc import Sequence

from p2prl.errors import IntegrityError, RemoteProtocolError
from p2prl.protocol.envelope import Opened
from p2prl.protocol.ledger_chain import entry_digest
from p2prl.scoreboard.ledger.ledger_fold import BoardState
from p2prl.scoreboard.ledger.ledger_sources import KnownRun
from p2prl.scoreboard.ledger.ledger_store import LedgerStore
from p2prl.scoreboard.ledger.signed_head import SignedHead, signed_head_of

_HEADS_AHEAD = 64
"""Signed heads remembered until their height is reached; the newest are kept."""

_READ_AT_ONCE = 256
"""Entries per query while the stored chain is verified again."""


class VerifiedLedger:
    """One run's chain of entries on disk, the totals over it, and the signed heads it was compared with."""

    def __init__(self, store: LedgerStore, run: KnownRun) -> None:
        self._store = store
        self._fold = run.new_fold()
        self.run = run
        self.confirmed: SignedHead | None = None
        """The highest signed head that the chain agrees with."""
        self._heads: dict[int, SignedHead] = {}

    @property
    def height(self) -> int:
        """Number of entries in the chain."""
        return self._fold.height

    def state(self) -> BoardState:
        """The totals so far."""
        return self._fold.state()

    def replay(self) -> None:
        """Fold the stored entries from the current height on, and drop those that fail verification."""
        while entries := self._store.entries(self._fold.height, _READ_AT_ONCE):
            for raw in entries:
                if self._is_contradicted(raw):
                    self._cut_back()
                    return
                if not self._follow(raw):
                    self._store.truncate(self._fold.height)
                    return

    def append(self, from_height: int, entries: Sequence[bytes]) -> int:
        """Store the new entries of a page, some of which may be known. Returns how many were new."""
        if from_height > self._fold.height:
            return 0
        before = self._fold.height
        accepted: list[bytes] = []
        is_fork = False
        for raw in entries[before - from_height :]:
            is_fork = self._is_contradicted(raw)
            if is_fork or not self._follow(raw):
                break
            accepted.append(raw)
        if accepted:
            self._store.append(before, accepted)
        if is_fork:
            self._cut_back()
        return len(accepted)

    def add_head(self, opened: Opened) -> None:
        """Compare a head with the chain, now or once its height is reached.

        Raises `RemoteProtocolError` when this run's learner did not sign it. A contradiction between two of the
        learner's heads is stored as an incident.
        """
        head = signed_head_of(self.run, opened)
        if head.height < 1:
            raise RemoteProtocolError("ledger head: of no entries")
        known = self._heads.setdefault(head.height, head)
        if known.head != head.head:
            self._store.keep_incident(f"the learner signed two different histories of {head.height} ledger entries")
            return
        if head.sent_ms > known.sent_ms:  # the final head often repeats the one before it
            known = self._heads[head.height] = head
        self._compare(known)
        while len(self._heads) > _HEADS_AHEAD:
            del self._heads[min(self._heads)]

    def _compare(self, head: SignedHead) -> None:
        if head.height > self._fold.height:
            return
        stored = self._store.entries(head.height - 1, 1)
        if stored and entry_digest(stored[0]) == head.head:
            self._confirm(head)
        elif self.confirmed is not None and head.height <= self.confirmed.height:
            self._store.keep_incident(
                f"the learner signed a history of {head.height} ledger entries that contradicts a later one"
            )
        else:
            self._cut_back()

    def _is_contradicted(self, raw: bytes) -> bool:
        """Whether a signed head has a different entry at the next height."""
        expected = self._heads.get(self._fold.height + 1)
        return expected is not None and expected.head != entry_digest(raw)

    def _follow(self, raw: bytes) -> bool:
        """Fold one entry; False when it does not follow."""
        try:
            self._fold.follow(raw)
        except (IntegrityError, RemoteProtocolError):
            return False
        if (head := self._heads.get(self._fold.height)) is not None:
            self._confirm(head)
        return True

    def _cut_back(self) -> None:
        """Drop the entries above the last confirmed height: they are not the learner's history."""
        self._store.truncate(0 if self.confirmed is None else self.confirmed.height)
        self._fold = self.run.new_fold()
        self.replay()

    def _confirm(self, head: SignedHead) -> None:
        known = self.confirmed
        if known is None or (head.height, head.sent_ms) > (known.height, known.sent_ms):
            self.confirmed = head
            self._store.keep_head(head.height, head.raw)
