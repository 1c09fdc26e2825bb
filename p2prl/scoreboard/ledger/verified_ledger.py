"""A swarm's ledger on this board: a stored chain, checked against the learner's signed heads.

Only a signed head proves that an entry belongs to the learner's history (`signed_head`), and all before it. So entries
are stored as they arrive, and verified and counted once a head proves them: what a stranger invents is dropped again
without counting anything twice (`unproven_entries`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from p2prl.errors import IntegrityError, RemoteProtocolError
from p2prl.protocol.countersignature import countersigned_head
from p2prl.protocol.envelope import Opened, body_of
from p2prl.protocol.ledger_chain import GENESIS
from p2prl.protocol.ledger_messages import LedgerHead
from p2prl.scoreboard.ledger.known_run import KnownRun
from p2prl.scoreboard.ledger.ledger_fold import BoardState
from p2prl.scoreboard.ledger.ledger_store import LedgerStore
from p2prl.scoreboard.ledger.plain_chain import Chain
from p2prl.scoreboard.ledger.signed_head import SignedHead, Witness, open_witness, signed_head_of
from p2prl.scoreboard.ledger.unproven_entries import UnprovenEntries

_HEADS_AHEAD = 64
"""Signed heads remembered until their height is reached; the newest are kept."""

COUNTERSIGNATURES_KEPT = 256
"""Countersignatures kept, one of each author. Keys are free: those without standing make way first, then those of the
lowest heights."""

_READ_AT_ONCE = 256
"""Entries per query while the stored chain is verified."""

_COUNTED_AT_ONCE = 4_096
"""Entries verified and counted in one go, less than a second of work: a board answers in between."""

_UNPROVEN_PAGES = 16
"""Pages stored above the highest signed head known, 4 MiB: the learner signs one whenever the ledger has grown."""


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
        self._proof: SignedHead | None = None
        """The highest signed head that the stored entries agree with: they are proven up to its height."""
        self._stored = UnprovenEntries(store)
        self._countersigned = {author: height for author, height, _ in store.countersignatures()}
        """Author → height of its newest countersignature."""
        self._agreeing: deque[int] = deque(maxlen=_HEADS_AHEAD)
        """Heights of the newest signed heads that the chain agrees with."""

    @property
    def height(self) -> int:
        """Number of entries verified and counted: those that may be served to others."""
        return self._fold.height

    @property
    def next_height(self) -> int:
        """Height from which to ask for entries."""
        return self._stored.height

    @property
    def signed_height(self) -> int:
        """Greatest height of a signed head known, whether the chain has reached it or not."""
        return max(self._heads, default=0)

    def state(self) -> BoardState | None:
        """The totals so far; None for a chain without them."""
        return self._fold.state()

    def replay(self) -> None:
        """Verify and count the stored entries that the heads known prove, and drop those that do not follow."""
        self._stored.load()
        self._prove()
        if self._heads:
            self._drop_contradicted(self._heads[max(self._heads)])
        while self.advance():
            pass

    def append(self, from_height: int, entries: Sequence[bytes]) -> bool:
        """Store the new entries of an answer to a question, some of which may be known. Returns whether to ask for the
        next at once: it brought some, or showed that those stored last may be a stranger's."""
        stored = self._stored
        if not from_height <= stored.height < from_height + len(entries):
            return False
        accepted, heads = stored.following(from_height, entries)
        if not accepted:
            return stored.take_back()
        newest = self._heads[max(self._heads)] if self._heads else None
        known = 0 if newest is None else newest.height
        if newest is not None and stored.height < known <= stored.height + len(heads):
            if heads[known - stored.height - 1] != newest.head:
                return False  # not the learner's history, and no later head can tell that the learner forked it
        elif stored.pages_from(known) >= _UNPROVEN_PAGES:
            return False
        stored.add(accepted, heads[-1])
        self._prove()
        self.advance()
        return True

    def advance(self) -> bool:
        """Verify and count some of the proven entries. Returns whether there are more."""
        end = 0 if self._proof is None else self._proof.height
        limit = min(end, self._fold.height + _COUNTED_AT_ONCE)
        while self._fold.height < limit:
            for raw in self._store.entries(self._fold.height, min(_READ_AT_ONCE, limit - self._fold.height)):
                if not self._follow(raw):
                    self._stored.cut(self._fold.height)
                    self._proof = self.confirmed
                    return False
        return self._fold.height < end

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
            height = witness.head.height
            if height <= self.height and self._stored.head_at(height) == witness.head.head:
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
        if head.height > self._stored.height:
            return
        fits = self._stored.head_at(head.height) == head.head
        if self._proof is not None and head.height <= self._proof.height:
            if not fits:
                self._store.keep_incident(self._fork_text(head, self._proof), self._proof.raw, head.raw)
            elif head.height <= self._fold.height:
                self._confirm(head)
        elif fits:
            self._prove()
            self.advance()
        else:
            self._drop_contradicted(head)

    def _prove(self) -> None:
        """Find the highest signed head that the stored entries agree with. Lower heads that they contradict prove a
        fork: the learner signed both histories."""
        proven = 0 if self._proof is None else self._proof.height
        heads = [self._heads[height] for height in sorted(self._heads) if proven < height <= self._stored.height]
        fits = [self._stored.head_at(head.height) == head.head for head in heads]
        if not any(fits):
            return
        newest = max(place for place, each in enumerate(fits) if each)
        self._proof = heads[newest]
        self._stored.proven(self._proof.height)
        if not all(fits[:newest]):
            other = heads[fits.index(False)]
            self._store.keep_incident(self._fork_text(other, self._proof), self._proof.raw, other.raw)

    def _drop_contradicted(self, head: SignedHead) -> None:
        """Drop the entries that a head contradicts, unless a higher one may still prove a fork."""
        if head.height == max(self._heads) and self._stored.head_at(head.height) not in (None, head.head):
            self._stored.cut_below(head.height)

    def _follow(self, raw: bytes) -> bool:
        """Count one entry; False when it cannot be counted."""
        try:
            self._fold.follow(raw)
        except (IntegrityError, RemoteProtocolError):
            return False
        head = self._heads.get(self._fold.height, self._proof)
        if head is not None and (head.height, head.head) == (self._fold.height, self._fold.head):
            self._confirm(head)
        return True

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
        self._agreeing.append(head.height)
        known = self.confirmed
        if known is None or (head.height, head.sent_ms) > (known.height, known.sent_ms):
            self.confirmed = head
            self._store.keep_head(head.height, head.raw)
