"""The chunk relay: weights spread from peer to peer while they are still arriving.

Every node that wants a blob asks its neighbours which chunks they hold, fetches the locally rarest ones first, and
serves what it has already verified. The learner reveals its chunks a few at a time, each to one neighbour before any
is revealed twice (super-seeding), and volunteers turn to it only for chunks it revealed to them, until volunteers
stop delivering: so the learner's uplink carries little more than one copy. A chunk is named by its BLAKE3, and a
chunk that hashes to something nobody asked for proves its sender wrong.

Pure: the owner feeds messages, `now` and a random source, and drains `outbox` after `flush`.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator

from p2prl.errors import RemoteProtocolError
from p2prl.protocol.codec import Wire
from p2prl.protocol.digests import Digest, chunk_digest, received_digest
from p2prl.protocol.identity import PeerId
from p2prl.protocol.manifests import BlobRef
from p2prl.protocol.messages import BlobQuery, Chunk, ChunkRefused, ChunkRequest, Have
from p2prl.swarm.ports import BlobStore, Randomness
from p2prl.swarm.transfers import Holder, RelayConfig, RelayStats, Transfer, bitmap_of, indices_of

__all__ = ["ForeignChunkError", "Relay", "RelayConfig", "RelayStats"]

_REMEMBERED_PEERS = 256
"""Former neighbours whose outstanding requests are remembered: their answers may outlive the link."""


class ForeignChunkError(RemoteProtocolError):
    """A chunk that was never asked of its sender: wrong bytes, whose hash is the proof."""


class Relay:
    """Chunk exchange for any number of blobs with any number of neighbours."""

    def __init__(self, store: BlobStore, rng: Randomness, config: RelayConfig) -> None:
        self._store = store
        self._rng = rng
        self._config = config
        self._transfers: dict[Digest, Transfer] = {}
        self._neighbours: dict[PeerId, Holder] = {}
        self._former: OrderedDict[PeerId, dict[Digest, None]] = OrderedDict()
        self._places: dict[Digest, dict[tuple[Digest, int], None]] = {}
        """Chunk → every (blob, index) it fills. Equal chunks, of one blob or of two versions, travel once."""
        self._in_flight: dict[Digest, tuple[PeerId, float]] = {}
        """Chunk → (who was asked, deadline); the oldest request stands first."""
        self._snubs_end: list[float] = []
        self._schedule_due = False
        self._timer_ran_at = -math.inf
        self.stats = RelayStats()
        self.outbox: list[tuple[PeerId, Wire]] = []
        self.completed: list[Digest] = []

    # --- what the owner wants ----------------------------------------------------------------------------------

    def offer(self, ref: BlobRef, now: float) -> None:
        """Serve a blob this node made; every chunk must already be in the store."""
        self._open(ref, now, origin=True, wanted=False)

    def fetch(self, ref: BlobRef, now: float) -> None:
        """Get a blob from whoever has it, resuming from what the store already holds.

        Its root appears in `completed` once, at once when the blob is whole already.
        """
        transfer = self._transfers.get(ref.root)
        if transfer is None:
            transfer = self._open(ref, now, origin=False, wanted=True)
            if not transfer.complete:
                self._query(transfer, now)
        if transfer.complete:
            self._finish(transfer)
        self._schedule_due = True

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
        return (len(transfer.have), transfer.total) if transfer else (0, 0)

    def progressed_at(self, root: Digest) -> float:
        """When the last chunk of a blob arrived; −∞ when the blob is unknown."""
        transfer = self._transfers.get(root)
        return transfer.progressed_at if transfer else -math.inf

    # --- neighbours --------------------------------------------------------------------------------------------

    def add_neighbour(self, peer: PeerId, *, is_source: bool) -> None:
        """A link is up. `is_source` marks the learner, whose uplink is to be spared."""
        known = self._neighbours.get(peer)
        if known is not None:
            known.is_source = is_source
            return
        self._neighbours[peer] = Holder(is_source, self._former.pop(peer, {}))
        self.outbox.extend((peer, BlobQuery(root)) for root, t in self._transfers.items() if t.arriving)

    def remove_neighbour(self, peer: PeerId) -> None:
        """The link is gone: take its requests back."""
        neighbour = self._neighbours.pop(peer, None)
        if neighbour is None:
            return
        self._former[peer] = neighbour.ever_asked
        if len(self._former) > _REMEMBERED_PEERS:
            self._former.popitem(last=False)
        self._in_flight = {chunk: asked for chunk, asked in self._in_flight.items() if asked[0] != peer}
        for transfer in self._transfers.values():
            transfer.watchers.discard(peer)
            transfer.stale.discard(peer)
            transfer.revealed = {i: seen for i, seen in transfer.revealed.items() if seen[0] != peer}
        self._schedule_due = True

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
                self._on_query(source, received_digest(root))
            case Have(root=root, bitmap=bitmap):
                self._on_have(source, neighbour, received_digest(root), bitmap)
            case ChunkRequest(chunk=chunk):
                self._on_request(source, neighbour, received_digest(chunk))
            case Chunk(data=data):
                self._on_chunk(source, neighbour, data, now)
            case ChunkRefused(chunk=chunk, retry_ms=retry_ms):
                self._on_refused(source, neighbour, received_digest(chunk), retry_ms, now)

    def handle_timer(self, now: float) -> None:
        """Take back requests past their deadline, hidden chunks nobody fetched, and ask again what was lost."""
        self._timer_ran_at = now
        self._snubs_end = [at for at in self._snubs_end if at > now]
        for peer, neighbour in self._neighbours.items():
            late = [chunk for chunk, deadline in neighbour.asked.items() if deadline <= now]
            for chunk in late:
                self._release(peer, neighbour, chunk)
                neighbour.strikes += 1
            if neighbour.strikes >= self._config.strikes:
                neighbour.strikes = 0
                self._snub(neighbour, now + self._config.snub_s)
        for transfer in self._transfers.values():
            expired = [i for i, (_, at) in transfer.revealed.items() if now - at >= self._config.reveal_timeout_s]
            for index in expired:
                del transfer.revealed[index]
            if expired:
                transfer.stale |= transfer.watchers
            if transfer.arriving and now >= self._query_again_at(transfer):
                self._query(transfer, now)
        self._schedule_due = True

    def next_deadline(self) -> float | None:
        """When `handle_timer` wants to run next, or None while nothing is outstanding."""
        return min((at for at in self._deadlines() if at > self._timer_ran_at), default=None)

    def flush(self, now: float) -> None:
        """Fill `outbox`: requests, and news of chunks, once per drain rather than once per chunk."""
        if self._schedule_due:
            self._schedule_due = False
            for root, transfer in self._transfers.items():
                if transfer.arriving:
                    self._schedule(root, transfer, now)
        for root, transfer in self._transfers.items():
            if transfer.stale and (transfer.origin or now >= transfer.announced_at + self._config.announce_s):
                transfer.announced_at = now
                for peer in sorted(transfer.stale):
                    shown = self._shown_to(peer, transfer, now) if transfer.origin else transfer.have
                    self.outbox.append((peer, Have(root, bitmap_of(shown, transfer.total))))
                transfer.stale.clear()

    def _deadlines(self) -> Iterator[float]:
        for transfer in self._transfers.values():
            if transfer.stale:
                yield transfer.announced_at + self._config.announce_s
            if transfer.arriving:
                yield transfer.volunteered_at + self._config.source_patience_s
                yield self._query_again_at(transfer)
            for _, at in transfer.revealed.values():
                yield at + self._config.reveal_timeout_s
        if self._in_flight:
            yield next(iter(self._in_flight.values()))[1]
        yield from self._snubs_end

    # --- serving -----------------------------------------------------------------------------------------------

    def _on_query(self, source: PeerId, root: Digest) -> None:
        transfer = self._transfers.get(root)
        if transfer is None:
            self.outbox.append((source, Have(root, b"")))
            return
        held = self._neighbours[source].holds
        if len(held.get(root, ())) == transfer.total:
            del held[root]  # whoever asks does not have it all: it lost its disk
        transfer.watchers.add(source)
        transfer.stale.add(source)
        transfer.announced_at = -math.inf  # a question is answered at once

    def _on_request(self, source: PeerId, neighbour: Holder, chunk: Digest) -> None:
        held = self._held(chunk)
        if held is None:
            self.outbox.append((source, ChunkRefused(chunk, 0)))
            return
        transfer, index = held
        if neighbour.uploads >= self._config.uploads_per_peer:
            self.outbox.append((source, ChunkRefused(chunk, int(self._config.busy_retry_s * 1000))))
            return
        neighbour.uploads += 1
        data = self._store.read(transfer.ref, index)
        self.stats.sent += len(data)
        self.outbox.append((source, Chunk(data)))
        if transfer.origin and index not in transfer.sent_once:
            transfer.sent_once.add(index)
            transfer.revealed.pop(index, None)
            finished = len(transfer.sent_once) == transfer.total
            transfer.stale |= transfer.watchers if finished else {source}

    def _shown_to(self, peer: PeerId, transfer: Transfer, now: float) -> set[int]:
        """Origin's view for one watcher: everything once all was sent once, else a small window of its own."""
        if len(transfer.sent_once) == transfer.total:
            return transfer.have
        mine = {i for i, (p, _) in transfer.revealed.items() if p == peer}
        fresh = [i for i in range(transfer.total) if i not in transfer.sent_once and i not in transfer.revealed]
        while fresh and len(mine) < self._config.reveal_window:
            index = fresh.pop(int(self._rng.random() * len(fresh)))
            transfer.revealed[index] = (peer, now)
            mine.add(index)
        return mine

    # --- fetching ----------------------------------------------------------------------------------------------

    def _query(self, transfer: Transfer, now: float) -> None:
        transfer.queried_at = now
        self.outbox.extend((peer, BlobQuery(transfer.ref.root)) for peer in self._neighbours)

    def _query_again_at(self, transfer: Transfer) -> float:
        return max(transfer.progressed_at, transfer.queried_at) + self._config.requery_s

    def _on_have(self, source: PeerId, neighbour: Holder, root: Digest, bitmap: bytes) -> None:
        transfer = self._transfers.get(root)
        if transfer is None or not transfer.wanted:
            return
        if len(bitmap) > (transfer.total + 7) // 8:
            raise RemoteProtocolError("have: bitmap longer than the blob")
        held = neighbour.holds[root] = indices_of(bitmap, transfer.total)
        if len(held) == transfer.total:
            transfer.watchers.discard(source)  # it lacks nothing, so no news of ours can be news to it
            transfer.stale.discard(source)
        self._schedule_due = True

    def _on_chunk(self, source: PeerId, neighbour: Holder, data: bytes, now: float) -> None:
        name = chunk_digest(data)
        if name not in neighbour.ever_asked:
            raise ForeignChunkError("chunk: bytes that hash to nothing we asked this peer for")
        self._release(source, neighbour, name)
        neighbour.strikes = 0
        self._schedule_due = True
        filled = self._fill(name, data, now)
        if not filled:
            self.stats.wasted += len(data)
            return
        if neighbour.is_source:
            self.stats.received_from_source += len(data)
        else:
            self.stats.received_from_peers += len(data)
        for transfer in filled:
            if not neighbour.is_source:
                transfer.volunteered_at = now
            if transfer.complete:
                self._finish(transfer)

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
                # Only to those who lack it: half of all announcements would tell a neighbour what it holds itself.
                transfer.stale.update(
                    p for p in transfer.watchers if index not in self._neighbours[p].holds.get(root, ())
                )
                filled[root] = transfer
        return list(filled.values())

    def _on_refused(self, source: PeerId, neighbour: Holder, chunk: Digest, retry_ms: int, now: float) -> None:
        if chunk not in neighbour.asked:
            return
        self._release(source, neighbour, chunk)
        if retry_ms <= 0:
            for root, index in self._places.get(chunk, ()):
                neighbour.holds.get(root, set()).discard(index)
        else:
            self._snub(neighbour, now + min(retry_ms / 1000, self._config.snub_s))
        self._schedule_due = True

    def _schedule(self, root: Digest, transfer: Transfer, now: float) -> None:
        """Hand every neighbour with room in its pipeline the best chunk it can give."""
        depth = self._config.pipeline_depth
        free = [p for p, n in self._neighbours.items() if root in n.holds and n.has_room(depth, now)]
        if not free:
            return
        chunks = transfer.ref.chunks
        missing = {i for i, c in enumerate(chunks) if i not in transfer.have and c not in self._in_flight}
        if not missing:
            return
        volunteers = [n.holds[root] for n in self._neighbours.values() if not n.is_source and root in n.holds]
        copies = dict.fromkeys(missing, 0)
        for held in volunteers:
            for index in held & missing:
                copies[index] += 1
        starved = not volunteers or now - transfer.volunteered_at >= self._config.source_patience_s
        # Volunteers first: the learner is asked last. Then those that answer in time.
        free.sort(key=lambda p: (self._neighbours[p].is_source, self._neighbours[p].strikes, p))
        for peer in free:
            neighbour = self._neighbours[peer]
            held = neighbour.holds[root]
            while neighbour.has_room(depth, now):
                choice = sorted(held & missing)
                if neighbour.is_source and not starved:
                    # A window shown to us alone is ours to fetch. Once it shows all, volunteers have every chunk.
                    choice = [i for i in choice if copies[i] == 0] if len(held) < transfer.total else []
                if not choice:
                    break
                rarest = min(copies[i] for i in choice)
                choice = [i for i in choice if copies[i] == rarest]
                name = Digest(chunks[choice[int(self._rng.random() * len(choice))]])
                missing = {i for i in missing if chunks[i] != name}
                deadline = now + self._config.request_timeout_s
                self._in_flight[name] = peer, deadline
                neighbour.note_request(name, deadline)
                self.outbox.append((peer, ChunkRequest(name)))

    def _release(self, peer: PeerId, neighbour: Holder, chunk: Digest) -> None:
        neighbour.asked.pop(chunk, None)
        if chunk in self._in_flight and self._in_flight[chunk][0] == peer:
            del self._in_flight[chunk]

    def _snub(self, neighbour: Holder, until: float) -> None:
        neighbour.snubbed_until = until
        self._snubs_end.append(until)

    def _open(self, ref: BlobRef, now: float, *, origin: bool, wanted: bool) -> Transfer:
        root = ref.root
        transfer = self._transfers.get(root)
        if transfer is None:
            transfer = Transfer(ref, set(self._store.begin(ref)), origin, wanted, now, now, now)
            self._transfers[root] = transfer
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
