"""The chunk relay: weights spread from peer to peer while they are still arriving.

Every node that wants a blob asks its neighbours which chunks they hold, fetches the locally rarest ones first, and
serves what it has already verified. The learner reveals its chunks a few at a time, each to one neighbour before any
is revealed twice (super-seeding), and volunteers turn to it only for chunks no volunteer holds: so the learner's
uplink carries little more than one copy. A chunk is named by its BLAKE3, and a chunk that hashes to something nobody
asked for proves its sender wrong.

Pure: the owner feeds messages, `now` and a random source, and drains `outbox`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from p2prl.errors import RemoteProtocolError
from p2prl.protocol.codec import Wire
from p2prl.protocol.digests import Digest, chunk_digest
from p2prl.protocol.identity import PeerId
from p2prl.protocol.manifests import BlobRef
from p2prl.protocol.messages import BlobQuery, Chunk, ChunkRefused, ChunkRequest, Have
from p2prl.swarm.ports import BlobStore, Randomness

_REMEMBERED_QUERIES = 256
"""Unknown blobs that neighbours asked about: a few versions ahead at most, unless somebody makes them up."""

_REMEMBERED_REQUESTS = 16_384
"""Requests remembered per neighbour (512 KiB): far more than can be late at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RelayConfig:
    """Dials of the relay; the defaults suit home links."""

    pipeline_depth: int = 2
    """Chunk requests outstanding per neighbour: one being sent, one waiting, so the link never idles."""
    request_timeout_s: float = 8.0
    """A request unanswered for this long is taken back and asked of somebody else."""
    strikes: int = 3
    """Timeouts after which a neighbour is not asked for chunks for `snub_s`."""
    snub_s: float = 30.0
    """How long a neighbour that kept timing out is left alone, seconds."""
    uploads_per_peer: int = 4
    """Chunks queued towards one neighbour; a request beyond is refused with a retry time."""
    source_patience_s: float = 1.5
    """Seconds without a new chunk after which the learner may be asked for what volunteers hold too."""
    reveal_window: int = 2
    """Chunks the learner shows a neighbour beyond those it fetched, until each chunk was sent once."""
    reveal_all_after_s: float = 1.0
    """Once each chunk was sent once, the learner shows the rest after this: volunteers' own news should come first."""
    reveal_timeout_s: float = 4.0
    """A revealed chunk not fetched within this time is shown to somebody else."""


@dataclass(slots=True)
class Transfer:
    """A blob this node holds or fetches."""

    ref: BlobRef
    have: set[int]
    origin: bool
    """Whether this node made the blob (the learner's own weights): super-seeding applies."""
    wanted: bool
    progressed_at: float
    watchers: set[PeerId] = field(default_factory=set)
    """Neighbours that asked about it, and hear of every new chunk."""
    revealed: dict[int, tuple[PeerId, float]] = field(default_factory=dict)
    """Origin only: chunk → (neighbour it was shown to, when) until it was sent once."""
    sent_once: set[int] = field(default_factory=set)
    reveal_all_at: float = math.inf
    open: bool = False
    """Origin only: when everything is shown to everybody, and whether that time has come."""
    stale: set[PeerId] = field(default_factory=set)
    """Watchers that have not yet been told of the latest chunks."""

    @property
    def complete(self) -> bool:
        return len(self.have) == len(self.ref.chunks)


@dataclass(slots=True)
class _Neighbour:
    is_source: bool
    holds: dict[Digest, set[int]] = field(default_factory=dict)
    asked: dict[Digest, float] = field(default_factory=dict)
    """Chunk digest → deadline of the outstanding request."""
    ever_asked: dict[Digest, None] = field(default_factory=dict)
    """Insertion-ordered and bounded: a late answer to a request taken back is no fault."""
    uploads: int = 0
    strikes: int = 0
    snubbed_until: float = -math.inf


@dataclass(slots=True)
class RelayStats:
    """Bytes of weight chunks moved by this node."""

    received_from_source: int = 0
    received_from_peers: int = 0
    sent: int = 0
    wasted: int = 0
    """Received although already held."""


class Relay:
    """Chunk exchange for any number of blobs with any number of neighbours."""

    def __init__(self, store: BlobStore, rng: Randomness, config: RelayConfig) -> None:
        self._store = store
        self._rng = rng
        self._config = config
        self._transfers: dict[Digest, Transfer] = {}
        self._neighbours: dict[PeerId, _Neighbour] = {}
        self._places: dict[Digest, dict[tuple[Digest, int], None]] = {}
        """Chunk → every (blob, index) it fills. Equal chunks, of one blob or of two versions, travel once."""
        self._in_flight: dict[Digest, PeerId] = {}
        self._early: dict[Digest, set[PeerId]] = {}
        """Neighbours that asked about blobs not known here yet."""
        self.stats = RelayStats()
        self.outbox: list[tuple[PeerId, Wire]] = []
        self.completed: list[Digest] = []

    # --- what the owner wants ----------------------------------------------------------------------------------

    def offer(self, ref: BlobRef, now: float) -> None:
        """Serve a blob this node made; every chunk must already be in the store."""
        self._open(ref, now, origin=True, wanted=False)

    def fetch(self, ref: BlobRef, now: float) -> None:
        """Get a blob from whoever has it, resuming from what the store already holds."""
        transfer = self._transfers.get(ref.root)
        if transfer is None:
            transfer = self._open(ref, now, origin=False, wanted=True)
            if transfer.complete:
                self._finish(transfer)
            else:
                for peer in self._neighbours:
                    self.outbox.append((peer, BlobQuery(ref.root)))
        self._schedule(now)

    def drop(self, root: Digest) -> None:
        """Stop fetching and serving a blob and free its space."""
        transfer = self._transfers.pop(root, None)
        if transfer is not None:
            for index, chunk in enumerate(transfer.ref.chunks):
                places = self._places[Digest(chunk)]
                del places[root, index]
                if not places:
                    del self._places[Digest(chunk)]
            for neighbour in self._neighbours.values():
                neighbour.holds.pop(root, None)
            self._store.drop(root)

    def progress(self, root: Digest) -> tuple[int, int]:
        """(chunks held, chunks in all) of a blob; (0, 0) when unknown."""
        transfer = self._transfers.get(root)
        return (len(transfer.have), len(transfer.ref.chunks)) if transfer else (0, 0)

    def progressed_at(self, root: Digest) -> float:
        """When the last chunk of a blob arrived; −∞ when the blob is unknown."""
        transfer = self._transfers.get(root)
        return transfer.progressed_at if transfer else -math.inf

    @property
    def busy(self) -> bool:
        """Whether any wanted blob is still incomplete."""
        return any(t.wanted and not t.complete for t in self._transfers.values())

    # --- neighbours --------------------------------------------------------------------------------------------

    def add_neighbour(self, peer: PeerId, *, is_source: bool) -> None:
        """A link is up. `is_source` marks the learner, whose uplink is to be spared."""
        known = self._neighbours.get(peer)
        if known is not None:
            known.is_source = is_source
            return
        self._neighbours[peer] = _Neighbour(is_source)
        for root, transfer in self._transfers.items():
            if transfer.wanted and not transfer.complete:
                self.outbox.append((peer, BlobQuery(root)))

    def remove_neighbour(self, peer: PeerId, now: float) -> None:
        """The link is gone: take its requests back."""
        if self._neighbours.pop(peer, None) is None:
            return
        self._in_flight = {chunk: p for chunk, p in self._in_flight.items() if p != peer}
        for transfer in self._transfers.values():
            transfer.watchers.discard(peer)
            transfer.stale.discard(peer)
            transfer.revealed = {i: seen for i, seen in transfer.revealed.items() if seen[0] != peer}
        self._schedule(now)

    def upload_done(self, peer: PeerId) -> None:
        """The shell has handed one chunk frame to `peer`, or failed to."""
        neighbour = self._neighbours.get(peer)
        if neighbour is not None and neighbour.uploads:
            neighbour.uploads -= 1

    # --- messages ----------------------------------------------------------------------------------------------

    def receive(self, message: Wire, source: PeerId, now: float) -> None:
        """Take one relay message. Raises `RemoteProtocolError` when it proves the sender at fault."""
        neighbour = self._neighbours.get(source)
        if neighbour is None:
            return
        match message:
            case BlobQuery(root=root):
                self._on_query(source, Digest(root))
            case Have(root=root, bitmap=bitmap):
                self._on_have(neighbour, Digest(root), bitmap, now)
            case ChunkRequest(chunk=chunk):
                self._on_request(source, neighbour, Digest(chunk), now)
            case Chunk(data=data):
                self._on_chunk(source, neighbour, data, now)
            case ChunkRefused(chunk=chunk, retry_ms=retry_ms):
                self._on_refused(source, neighbour, Digest(chunk), retry_ms, now)

    def handle_timer(self, now: float) -> None:
        """Take back requests past their deadline and look for work."""
        for peer, neighbour in self._neighbours.items():
            late = [chunk for chunk, deadline in neighbour.asked.items() if deadline <= now]
            for chunk in late:
                self._release(peer, neighbour, chunk)
                neighbour.strikes += 1
            if neighbour.strikes >= self._config.strikes:
                neighbour.strikes = 0
                neighbour.snubbed_until = now + self._config.snub_s
        for transfer in self._transfers.values():
            if not transfer.origin:
                continue
            if transfer.reveal_all_at <= now and not transfer.open:
                transfer.open = True
                transfer.stale |= transfer.watchers
            elif not transfer.open:
                expired = [i for i, (_, at) in transfer.revealed.items() if now - at >= self._config.reveal_timeout_s]
                for index in expired:
                    del transfer.revealed[index]
                if expired:
                    transfer.stale |= transfer.watchers
        self._schedule(now)

    def next_deadline(self) -> float | None:
        """When `handle_timer` wants to run, or None while nothing is outstanding."""
        times = [deadline for n in self._neighbours.values() for deadline in n.asked.values()]
        for transfer in self._transfers.values():
            if transfer.wanted and not transfer.complete:
                times.append(transfer.progressed_at + self._config.source_patience_s)
            if transfer.origin:
                times.extend(at + self._config.reveal_timeout_s for _, at in transfer.revealed.values())
                if not transfer.open:
                    times.append(transfer.reveal_all_at)
        return min(times, default=None)

    def flush(self, now: float) -> None:
        """Tell watchers of new chunks, once per drain of the outbox rather than once per chunk."""
        for root, transfer in self._transfers.items():
            for peer in sorted(transfer.stale):
                shown = self._shown_to(peer, transfer, now) if transfer.origin else transfer.have
                self.outbox.append((peer, Have(root, _bitmap(shown, len(transfer.ref.chunks)))))
            transfer.stale.clear()

    # --- serving -----------------------------------------------------------------------------------------------

    def _on_query(self, source: PeerId, root: Digest) -> None:
        transfer = self._transfers.get(root)
        if transfer is None:
            # Its manifest reached them first. They will want to hear of our chunks once it has reached us.
            self._early.setdefault(root, set()).add(source)
            if len(self._early) > _REMEMBERED_QUERIES:
                del self._early[next(iter(self._early))]
            return
        transfer.watchers.add(source)
        transfer.stale.add(source)

    def _on_request(self, source: PeerId, neighbour: _Neighbour, chunk: Digest, now: float) -> None:
        held = self._held(chunk)
        if held is None:
            self.outbox.append((source, ChunkRefused(chunk, 0)))
            return
        transfer, index = held
        if neighbour.uploads >= self._config.uploads_per_peer:
            self.outbox.append((source, ChunkRefused(chunk, 500)))
            return
        neighbour.uploads += 1
        data = self._store.read(transfer.ref, index)
        self.stats.sent += len(data)
        self.outbox.append((source, Chunk(data)))
        if transfer.origin and index not in transfer.sent_once:
            transfer.sent_once.add(index)
            transfer.revealed.pop(index, None)
            transfer.stale.add(source)
            if len(transfer.sent_once) == len(transfer.ref.chunks):
                transfer.reveal_all_at = now + self._config.reveal_all_after_s

    def _shown_to(self, peer: PeerId, transfer: Transfer, now: float) -> set[int]:
        """Origin's view for one watcher: a small window of its own, until everything is open to everybody."""
        if transfer.open:
            return transfer.have
        total = len(transfer.ref.chunks)
        mine = {i for i, (p, _) in transfer.revealed.items() if p == peer}
        fresh = [i for i in range(total) if i not in transfer.sent_once and i not in transfer.revealed]
        while fresh and len(mine) < self._config.reveal_window:
            index = fresh.pop(int(self._rng.random() * len(fresh)))
            transfer.revealed[index] = (peer, now)
            mine.add(index)
        return mine

    # --- fetching ----------------------------------------------------------------------------------------------

    def _on_have(self, neighbour: _Neighbour, root: Digest, bitmap: bytes, now: float) -> None:
        transfer = self._transfers.get(root)
        if transfer is None or not transfer.wanted:
            return
        total = len(transfer.ref.chunks)
        if len(bitmap) > (total + 7) // 8:
            raise RemoteProtocolError("have: bitmap longer than the blob")
        neighbour.holds[root] = {i for i in range(min(total, 8 * len(bitmap))) if bitmap[i >> 3] >> (i & 7) & 1}
        self._schedule(now)

    def _on_chunk(self, source: PeerId, neighbour: _Neighbour, data: bytes, now: float) -> None:
        name = chunk_digest(data)
        if name not in neighbour.ever_asked:
            raise RemoteProtocolError("chunk: bytes that hash to nothing we asked this peer for")
        self._release(source, neighbour, name)
        neighbour.strikes = 0
        filled = self._fill(name, data, now)
        if not filled:
            self.stats.wasted += len(data)
            return
        if neighbour.is_source:
            self.stats.received_from_source += len(data)
        else:
            self.stats.received_from_peers += len(data)
        for transfer in filled:
            if transfer.complete:
                self._finish(transfer)
        self._schedule(now)

    def _held(self, chunk: Digest) -> tuple[Transfer, int] | None:
        """A blob and index where this node holds the chunk."""
        for root, index in self._places.get(chunk, ()):
            if index in self._transfers[root].have:
                return self._transfers[root], index
        return None

    def _fill(self, chunk: Digest, data: bytes, now: float) -> list[Transfer]:
        """Write the chunk wherever it belongs and is missing; the transfers that gained."""
        filled: dict[Digest, Transfer] = {}
        for root, index in self._places.get(chunk, ()):
            transfer = self._transfers[root]
            if index not in transfer.have:
                self._store.write(transfer.ref, index, data)
                transfer.have.add(index)
                transfer.progressed_at = now
                transfer.stale |= transfer.watchers
                filled[root] = transfer
        return list(filled.values())

    def _on_refused(self, source: PeerId, neighbour: _Neighbour, chunk: Digest, retry_ms: int, now: float) -> None:
        if chunk not in neighbour.asked:
            return
        self._release(source, neighbour, chunk)
        if retry_ms <= 0:
            for root, index in self._places.get(chunk, ()):
                neighbour.holds.get(root, set()).discard(index)
        else:
            neighbour.snubbed_until = now + min(retry_ms / 1000, self._config.snub_s)
        self._schedule(now)

    def _schedule(self, now: float) -> None:
        """Hand every neighbour with room in its pipeline the best chunk it can give."""
        for transfer in self._transfers.values():
            if transfer.wanted and not transfer.complete:
                self._schedule_transfer(transfer, now)

    def _schedule_transfer(self, transfer: Transfer, now: float) -> None:
        root = transfer.ref.root
        missing = [
            i for i, chunk in enumerate(transfer.ref.chunks) if i not in transfer.have and chunk not in self._in_flight
        ]
        if not missing:
            return
        holders = {peer: n.holds[root] for peer, n in self._neighbours.items() if root in n.holds}
        copies = {
            i: sum(i in held for p, held in holders.items() if not self._neighbours[p].is_source) for i in missing
        }
        patient = now - transfer.progressed_at < self._config.source_patience_s
        # Volunteers first: the learner is asked last, and only for what nobody else can give.
        for peer in sorted(holders, key=lambda p: (self._neighbours[p].is_source, p)):
            neighbour = self._neighbours[peer]
            while len(neighbour.asked) < self._config.pipeline_depth and neighbour.snubbed_until <= now:
                choice = [i for i in missing if i in holders[peer]]
                if neighbour.is_source and patient:
                    choice = [i for i in choice if copies[i] == 0]
                if not choice:
                    break
                rarest = min(copies[i] for i in choice)
                choice = [i for i in choice if copies[i] == rarest]
                index = choice[int(self._rng.random() * len(choice))]
                name = Digest(transfer.ref.chunks[index])
                missing = [i for i in missing if transfer.ref.chunks[i] != name]
                self._request(peer, neighbour, name, now)

    def _request(self, peer: PeerId, neighbour: _Neighbour, name: Digest, now: float) -> None:
        self._in_flight[name] = peer
        neighbour.asked[name] = now + self._config.request_timeout_s
        neighbour.ever_asked[name] = None
        if len(neighbour.ever_asked) > _REMEMBERED_REQUESTS:
            del neighbour.ever_asked[next(iter(neighbour.ever_asked))]
        self.outbox.append((peer, ChunkRequest(name)))

    def _release(self, peer: PeerId, neighbour: _Neighbour, chunk: Digest) -> None:
        neighbour.asked.pop(chunk, None)
        if self._in_flight.get(chunk) == peer:
            del self._in_flight[chunk]

    def _open(self, ref: BlobRef, now: float, *, origin: bool, wanted: bool) -> Transfer:
        root = ref.root
        transfer = self._transfers.get(root)
        if transfer is None:
            transfer = Transfer(ref, set(self._store.begin(ref)), origin, wanted, now)
            self._transfers[root] = transfer
            transfer.watchers = {peer for peer in self._early.pop(root, ()) if peer in self._neighbours}
            transfer.stale |= transfer.watchers
            for index, chunk in enumerate(ref.chunks):
                self._places.setdefault(Digest(chunk), {})[root, index] = None
            self._adopt(transfer, now)
        return transfer

    def _adopt(self, transfer: Transfer, now: float) -> None:
        """Copy chunks another held blob shares with a new one instead of fetching them again."""
        for index, chunk in enumerate(transfer.ref.chunks):
            held = None if index in transfer.have else self._held(Digest(chunk))
            if held is not None:
                self._fill(Digest(chunk), self._store.read(held[0].ref, held[1]), now)

    def _finish(self, transfer: Transfer) -> None:
        self._store.finish(transfer.ref)
        self.completed.append(transfer.ref.root)


def _bitmap(indices: Iterable[int], total: int) -> bytes:
    bits = bytearray((total + 7) // 8)
    for index in indices:
        bits[index >> 3] |= 1 << (index & 7)
    return bytes(bits)
