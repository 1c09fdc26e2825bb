"""A swarm's ledger on this board: a stored chain, checked against the learner's signed heads.

Only a signed head proves that an entry belongs to the learner's history (`signed_head`). Entries are shown as they
arrive and every learner head is compared with the chain; a contradicted chain is cut back to the last confirmed height.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from p2prl.errors import IntegrityError, RemoteProtocolError
from p2prl.protocol.countersignature import countersigned_head
from p2prl.protocol.envelope import Opened, body_of
from p2prl.protocol.ledger_chain import GENESIS, entry_digest
from p2prl.protocol.ledger_messages import LedgerHead
from p2prl.scoreboard.ledger.known_run import KnownRun
from p2prl.scoreboard.ledger.ledger_fold import BoardState
from p2prl.scoreboard.ledger.ledger_store import LedgerStore
from p2prl.scoreboard.ledger.plain_chain import Chain
from p2prl.scoreboard.ledger.signed_head import SignedHead, Witness, open_witness, signed_head_of

_HEADS_AHEAD = 64
"""Signed heads remembered until their height is reached; the newest are kept."""

COUNTERSIGNATURES_KEPT = 256
"""Countersignatures kept, one of each author. Keys are free: those without standing make way first, then those of the
lowest heights."""

_READ_AT_ONCE = 256
"""Entries per query while the stored chain is verified again."""


class VerifiedLedger:
    """One run's chain of entries on disk, the totals over it, and the signed heads it was compared with."""

    def __init__(
        self, store: LedgerStore, run: KnownRun, new_chain: Callable[[KnownRun], Chain] = KnownRun.new_fold
    ) -> None:
        """`new_chain` begins a chain: by default one with the board's totals."""
        self._store = store
        self._new_chain = new_chain
        self._fold = new_chain(run)
        self.run = run
        self.confirmed: SignedHead | None = None
        """The highest signed head that the chain agrees with."""
        self._heads: dict[int, SignedHead] = {}
        self._doubt: SignedHead | None = None
        """A signed head that entries above the last confirmed height contradict."""
        self._countersigned = {author: height for author, height, _ in store.countersignatures()}
        """Author → height of its newest countersignature."""
        self._agreeing: deque[int] = deque(maxlen=_HEADS_AHEAD)
        """Heights of the newest signed heads that the chain agrees with."""

    @property
    def height(self) -> int:
        """Number of entries in the chain."""
        return self._fold.height

    def state(self) -> BoardState | None:
        """The totals so far; None for a chain without them."""
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
                is_fork = is_fork or self._doubt is not None
                break
            accepted.append(raw)
        if accepted:
            self._store.append(before, accepted)
        if is_fork:
            self._cut_back()
        return len(accepted)

    def add_countersignature(self, opened: Opened) -> None:
        """Compare the head inside with the chain, as `add_head`, and keep the newest countersignature of each author.

        Raises `RemoteProtocolError` unless it is of a head that this run's learner signed.
        """
        head = countersigned_head(opened, run=self.run.run, learner=self.run.manifest.learner)
        self.add_head(head)
        height = body_of(head, LedgerHead).height
        heights = self._countersigned
        if height < heights.get(opened.author, 0):
            return
        heights[opened.author] = height
        self._store.keep_countersignature(opened.author, height, opened.raw)
        while len(heights) > COUNTERSIGNATURES_KEPT:
            least = min(heights, key=lambda author: (self._fold.knows(author), heights[author]))
            del heights[least]
            self._store.drop_countersignature(least)

    def countersignatures(self) -> tuple[Witness, ...]:
        """The newest countersignature of each author whose head the chain agrees with."""
        found = []
        for _, _, raw in self._store.countersignatures():
            witness = open_witness(self.run, raw)
            stored = self._store.entries(witness.head.height - 1, 1)
            if witness.head.height <= self.height and stored and entry_digest(stored[0]) == witness.head.head:
                found.append(witness)
        return tuple(found)

    def add_head(self, opened: Opened) -> None:
        """Compare a head with the chain, now or once its height is reached.

        Raises `RemoteProtocolError` when this run's learner did not sign it. A contradiction between two of the
        learner's heads is stored as an incident.
        """
        head = signed_head_of(self.run, opened)
        if head.height < 1:
            if head.head != GENESIS:
                raise RemoteProtocolError("ledger head: an entry of none")
            return  # a new run's: there is nothing to compare yet
        known = self._heads.setdefault(head.height, head)
        if known.head != head.head:
            self._store.keep_incident(self._fork_text(head, known), known.raw, head.raw)
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
            self._store.keep_incident(self._fork_text(head, self.confirmed), self.confirmed.raw, head.raw)
        else:
            self._cut_back()

    def _is_contradicted(self, raw: bytes) -> bool:
        """Whether a signed head has a different entry at the next height, and no later one can tell whose history this
        is: an entry that only the lower of two heads contradicts is followed, since it may prove a fork."""
        expected = self._heads.get(self._fold.height + 1)
        if expected is None or expected.head == entry_digest(raw):
            return False
        if expected.height == max(self._heads):
            return True
        self._doubt = self._doubt or expected
        return False

    def _follow(self, raw: bytes) -> bool:
        """Fold one entry; False when it does not follow."""
        try:
            self._fold.follow(raw)
        except (IntegrityError, RemoteProtocolError):
            return False
        head = self._heads.get(self._fold.height)
        if head is not None and head.head == self._fold.head:
            self._confirm(head)
        return True

    def _cut_back(self) -> None:
        """Drop the entries above the last confirmed height: they are not the learner's history."""
        self._doubt = None
        self._store.truncate(0 if self.confirmed is None else self.confirmed.height)
        self._fold = self._new_chain(self.run)
        self.replay()

    def _fork_text(self, head: SignedHead, other: SignedHead) -> str:
        """What is wrong and where: `head` is the lower of two heads that contradict each other."""
        agreed = max((height for height in self._agreeing if height < head.height), default=0)
        where = f"after the first {agreed:,}, which a signed head fits, and " if agreed else ""
        heads = f"heads {head.head.hex()[:16]}… and {other.head.hex()[:16]}…"
        what = f"two different histories of {head.height} ledger entries"
        if head.height != other.height:
            what = f"a history of {head.height} ledger entries that contradicts one of {other.height}"
        return f"the learner signed {what} ({heads}); they part {where}at entry {head.height - 1} or before it"

    def _confirm(self, head: SignedHead) -> None:
        if self._doubt is not None:
            self._store.keep_incident(self._fork_text(self._doubt, head), head.raw, self._doubt.raw)
            self._doubt = None
        self._agreeing.append(head.height)
        known = self.confirmed
        if known is None or (head.height, head.sent_ms) > (known.height, known.sent_ms):
            self.confirmed = head
            self._store.keep_head(head.height, head.raw)
