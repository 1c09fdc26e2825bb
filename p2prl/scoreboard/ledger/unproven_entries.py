"""Entries of a ledger that no signed head proves yet: stored page by page, and taken back the same way.

Each entry names the one before, so a signed head proves all entries up to its height, and nothing else does: a stranger
can sign verdicts that fit any chain. The first of such entries would keep the learner's from following. So when the
answer to a question does not follow what is stored, one of the two is false, and the newest page is taken back: honest
answers that outnumber false ones win, however long the ledger is, since a false page undoes one page.
"""

from __future__ import annotations

from collections.abc import Sequence

from p2prl.errors import IntegrityError, RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.digests import Digest
from p2prl.protocol.ledger_chain import GENESIS, entry_digest, link
from p2prl.scoreboard.ledger.ledger_store import LedgerStore

_READ_AT_ONCE = 256
"""Entries per query while a stored chain is read again."""


class UnprovenEntries:
    """The newest part of a stored chain. Heights count entries from the ledger's first."""

    def __init__(self, store: LedgerStore) -> None:
        self._store = store
        self._starts: list[int] = []
        """Heights at which its pages begin, in ascending order."""
        self.height = 0
        """Entries stored, those that are proven among them."""
        self.head = GENESIS
        """Digest of the newest."""

    def load(self) -> None:
        """Read the stored chain up to its first entry that does not follow, and drop that and those after it."""
        while entries := self._store.entries(self.height, _READ_AT_ONCE):
            heads = self._heads_of(entries)
            self.height += len(heads)
            if heads:
                self.head = heads[-1]
            if len(heads) < len(entries):
                break
        self._store.truncate(self.height)
        self._starts = list(range(0, self.height, limits.MAX_LEDGER_ENTRIES_PER_REPLY))

    def following(self, from_height: int, entries: Sequence[bytes]) -> tuple[list[bytes], list[Digest]]:
        """The new entries of a page, as far as each follows the one before, and the head after each."""
        new = list(entries[self.height - from_height :])
        heads = self._heads_of(new)
        return new[: len(heads)], heads

    def add(self, entries: Sequence[bytes], head: Digest) -> None:
        """Store a page that follows, `head` the digest of its last entry."""
        self._store.append(self.height, entries)
        self._starts.append(self.height)
        self.height, self.head = self.height + len(entries), head

    def pages_from(self, height: int) -> int:
        """Number of pages that begin at a height or above."""
        return sum(start >= height for start in self._starts)

    def proven(self, height: int) -> None:
        """The entries up to a height are proven: they are not taken back any more."""
        later = [start for start in self._starts if start > height]
        self._starts = [height, *later] if height < self.height else []

    def take_back(self) -> bool:
        """Drop the newest page; False when all entries are proven."""
        if not self._starts:
            return False
        self.cut(self._starts[-1])
        return True

    def cut_below(self, height: int) -> None:
        """Drop the page with the entry before this height, and those after it."""
        below = [start for start in self._starts if start < height]
        if below:
            self.cut(below[-1])

    def cut(self, height: int) -> None:
        """Drop the entries from a height on."""
        self._store.truncate(height)
        self._starts = [start for start in self._starts if start < height]
        self.height, self.head = height, self.head_at(height) or GENESIS

    def head_at(self, height: int) -> Digest | None:
        """Digest of the last of the first `height` entries; None when fewer are stored, or for none."""
        stored = self._store.entries(height - 1, 1) if height else []
        return entry_digest(stored[0]) if stored else None

    def _heads_of(self, entries: Sequence[bytes]) -> list[Digest]:
        heads: list[Digest] = []
        for raw in entries:
            try:
                _, head = link(raw, height=self.height + len(heads), head=heads[-1] if heads else self.head)
            except (IntegrityError, RemoteProtocolError):
                break
            heads.append(head)
        return heads
