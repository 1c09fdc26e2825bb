"""The chunk relay: weights spread from peer to peer while they are still arriving.

Every node that wants a blob asks its neighbours what they hold and tells them what it has itself. A node with a free
upload slot *grants* one neighbour a chunk (`serving`); the neighbour answers with a request for the locally rarest
chunk it can get there, or declines (`fetching`). So the sender chooses whom to serve, the receiver which chunk, and
neither waits for a round trip, since grants leave ahead of the slots. A chunk is named by its BLAKE3, and a chunk
that hashes to something nobody asked for proves its sender wrong.

Pure: the owner feeds messages, `now` and a random source, and drains `outbox` after `flush`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from p2prl.protocol.digests import Digest, received_digest
from p2prl.protocol.identity import PeerId
from p2prl.protocol.link_messages import (
    BlobQuery,
    Chunk,
    ChunkCancel,
    ChunkGrant,
    ChunkRefused,
    ChunkRequest,
    GrantDeclined,
    Have,
    LinkRates,
)
from p2prl.protocol.manifests import BlobRef
from p2prl.protocol.wire_codec import Wire
from p2prl.swarm.ports import BlobStore, Randomness
from p2prl.swarm.relay.chunk_sets import to_bitmap
from p2prl.swarm.relay.download import ChunkDownloads, ForeignChunkError
from p2prl.swarm.relay.peer_selection import Rates
from p2prl.swarm.relay.state import Holder, RelayConfig, RelayState, RelayStats, Transfer
from p2prl.swarm.relay.upload import ChunkUploads
from p2prl.swarm.relay.upload_slots import slots_for

__all__ = ["ForeignChunkError", "Relay", "RelayConfig", "RelayStats"]

_REMEMBERED_PEERS = 256
"""Former neighbours whose outstanding requests are remembered: their answers may outlive the link."""

_KBIT_BYTES = 125.0


class Relay:
    """Chunk exchange for any number of blobs with any number of neighbours."""

    def __init__(self, store: BlobStore, rng: Randomness, config: RelayConfig) -> None:
        self._state = RelayState(store, rng, config)
        self._serving = ChunkUploads(self._state)
        self._fetching = ChunkDownloads(self._state)
        self._timer_ran_at = -math.inf
        self._deadline: float | None = None
        self._deadline_stands = False
        """Whether nothing has happened since `_deadline` was worked out: it is asked for far oftener than it moves."""
        self.completed: list[Digest] = []

    @property
    def stats(self) -> RelayStats:
        """Bytes moved so far."""
        return self._state.stats

    @property
    def outbox(self) -> list[tuple[PeerId, Wire]]:
        """What is to be sent, for the owner to take and clear."""
        return self._state.outbox

    # --- what the owner wants ----------------------------------------------------------------------------------

    def offer(self, ref: BlobRef, now: float) -> None:
        """Serve a blob this node made; every chunk must already be in the store."""
        self._deadline_stands = False
        transfer = self._open(ref, now, origin=True, wanted=False)
        transfer.unsent = transfer.have
        self._serving.due = True

    def fetch(self, ref: BlobRef, now: float) -> None:
        """Get a blob from whoever has it, resuming from what the store already holds.

        Its root appears in `completed` once, at once when the blob is whole already.
        """
        self._deadline_stands = False
        transfer = self._state.transfers.get(ref.root)
        if transfer is None:
            transfer = self._open(ref, now, origin=False, wanted=True)
            if not transfer.complete:
                self._fetching.query(transfer, now)
        if transfer.complete:
            self._finish(transfer)
        self._serving.due = True

    def drop(self, root: Digest) -> None:
        """Stop fetching and serving a blob and free its space."""
        self._deadline_stands = False
        transfer = self._state.transfers.pop(root, None)
        if transfer is not None:
            for index, chunk in enumerate(transfer.ref.chunks):
                places = self._state.places[Digest(chunk)]
                del places[root, index]
                if not places:
                    del self._state.places[Digest(chunk)]
            for neighbour in self._state.neighbours.values():
                neighbour.holds.pop(root, None)
            self._state.store.drop(root)

    def set_upload(self, bytes_s: float) -> None:
        """The uplink was measured: slots and the neighbours' picture of us follow."""
        state = self._state
        state.config = replace(state.config, upload_bytes_s=bytes_s)
        self._serving.queue.slots = slots_for(bytes_s)
        self._serving.due = True
        for peer in state.neighbours:
            self._say_rates(peer)

    def allow_uploads(self, allowed: bool) -> None:
        """Whether anything is granted from now on: the owner's byte budget decides."""
        if allowed != self._serving.open:
            self._serving.open = allowed
            self._serving.due = True

    def progress(self, root: Digest) -> tuple[int, int]:
        """(chunks held, chunks in all) of a blob; (0, 0) when unknown."""
        transfer = self._state.transfers.get(root)
        return (transfer.have.bit_count(), transfer.total) if transfer else (0, 0)

    def progressed_at(self, root: Digest) -> float:
        """When the last chunk of a blob arrived; −∞ when the blob is unknown."""
        transfer = self._state.transfers.get(root)
        return transfer.progressed_at if transfer else -math.inf

    # --- neighbours --------------------------------------------------------------------------------------------

    def add_neighbour(self, peer: PeerId, *, is_source: bool) -> None:
        """A link is up. `is_source` marks the learner, whose uplink is to be spared."""
        state = self._state
        known = state.neighbours.get(peer)
        if known is not None:
            if known.is_source != is_source:
                self._change_rarity(known, present=False)
                known.is_source = is_source
                self._change_rarity(known, present=True)
            return
        state.neighbours[peer] = Holder(is_source, state.former.pop(peer, {}))
        self._say_rates(peer)
        for root, transfer in state.transfers.items():
            if transfer.arriving:
                state.outbox.append((peer, BlobQuery(root)))
                if transfer.have:
                    state.outbox.append((peer, Have(root, to_bitmap(transfer.have, transfer.total))))

    def remove_neighbour(self, peer: PeerId) -> None:
        """The link is gone: take its requests and grants back."""
        self._deadline_stands = False
        state = self._state
        neighbour = state.neighbours.get(peer)
        if neighbour is None:
            return
        self._fetching.forget(peer, neighbour)
        self._serving.forget(peer)
        del state.neighbours[peer]
        state.former[peer] = neighbour.ever_asked
        if len(state.former) > _REMEMBERED_PEERS:
            state.former.popitem(last=False)

    def upload_of(self, peer: PeerId) -> float:
        """What a neighbour says its uplink carries, bytes/s; 0 when it has not said."""
        neighbour = self._state.neighbours.get(peer)
        return 0.0 if neighbour is None else neighbour.rates.upload_bytes_s

    def upload_done(self, peer: PeerId) -> None:
        """The shell has handed one chunk frame to `peer`, or failed to."""
        self._deadline_stands = False
        self._serving.upload_done(peer)

    # --- messages ----------------------------------------------------------------------------------------------

    def receive(self, message: Wire, source: PeerId, now: float) -> None:
        """Take one relay message. Raises `RemoteProtocolError` when it proves the sender at fault."""
        neighbour = self._state.neighbours.get(source)
        if neighbour is None:
            return
        self._deadline_stands = False
        match message:
            case Have(root=root, bitmap=bitmap):
                name = received_digest(root)
                self._fetching.on_have(source, neighbour, name, bitmap)
                self._serving.on_have(source, name, now)
            case ChunkGrant(root=root, bitmap=bitmap):
                self._fetching.on_grant(source, neighbour, received_digest(root), bitmap, now)
            case ChunkRequest(chunk=chunk):
                self._serving.on_request(source, received_digest(chunk))
            case Chunk(data=data):
                if self._fetching.on_chunk(source, neighbour, data, now):
                    self._finish_whole()
                    self._serving.gained()
            case BlobQuery(root=root):
                self._serving.on_query(source, received_digest(root), now)
            case GrantDeclined(root=root, retry_ms=retry_ms):
                self._serving.on_declined(source, received_digest(root), retry_ms, now)
            case ChunkCancel(chunk=chunk):
                self._serving.on_cancel(source, received_digest(chunk))
            case ChunkRefused(chunk=chunk, retry_ms=retry_ms):
                self._fetching.on_refused(source, neighbour, received_digest(chunk), retry_ms, now)
            case LinkRates(upload_kbit_s=upload, download_kbit_s=download):
                neighbour.rates = Rates(max(0, upload) * _KBIT_BYTES, max(0, download) * _KBIT_BYTES)
                for transfer in self._state.transfers.values():
                    transfer.pace = None

    def handle_timer(self, now: float) -> None:
        """Take back requests and grants past their deadline, and ask again what was lost."""
        self._timer_ran_at, self._deadline_stands = now, False
        self._fetching.handle_timer(now)
        self._serving.handle_timer(now)

    def next_deadline(self) -> float | None:
        """When `handle_timer` wants to run next, or None while nothing is outstanding."""
        if not self._deadline_stands:
            self._deadline = min((at for at in self._deadlines() if at > self._timer_ran_at), default=None)
            self._deadline_stands = True
        return self._deadline

    def flush(self, now: float) -> None:
        """Fill `outbox`: chunks and grants, and news of chunks, once per drain rather than once per chunk."""
        served = self._serving.serve(now)
        told = self._serving.tell(now)
        if served or told:
            self._deadline_stands = False

    def _deadlines(self) -> Iterator[float]:
        yield from self._fetching.deadlines()
        yield from self._serving.deadlines()

    def _say_rates(self, peer: PeerId) -> None:
        config = self._state.config
        if config.upload_bytes_s or config.download_bytes_s:
            upload, download = config.upload_bytes_s / _KBIT_BYTES, config.download_bytes_s / _KBIT_BYTES
            self._state.outbox.append((peer, LinkRates(int(upload), int(download))))

    # --- blobs -------------------------------------------------------------------------------------------------

    def _open(self, ref: BlobRef, now: float, *, origin: bool, wanted: bool) -> Transfer:
        state, root = self._state, ref.root
        transfer = state.transfers.get(root)
        if transfer is None:
            transfer = Transfer(ref, root, 0, origin, wanted, began_at=now, progressed_at=now, queried_at=now)
            for index in state.store.begin(ref):
                transfer.have |= 1 << index
            state.transfers[root] = transfer
            for index, chunk in enumerate(ref.chunks):
                state.places.setdefault(Digest(chunk), {})[root, index] = None
            self._adopt(transfer, now)
        return transfer

    def _adopt(self, transfer: Transfer, now: float) -> None:
        """Copy chunks another held blob shares with a new one instead of fetching them again."""
        for index, chunk in enumerate(transfer.ref.chunks):
            held = None if transfer.have >> index & 1 else self._state.held(Digest(chunk))
            if held is not None:
                self._fetching.fill(Digest(chunk), self._state.store.read(held[0].ref, held[1]), now)
        self._fetching.whole.clear()  # `fetch` finishes what was whole from the start

    def _finish_whole(self) -> None:
        for transfer in self._fetching.whole:
            self._finish(transfer)
        self._fetching.whole.clear()

    def _finish(self, transfer: Transfer) -> None:
        self._state.store.finish(transfer.ref)
        self.completed.append(transfer.root)

    def _change_rarity(self, neighbour: Holder, *, present: bool) -> None:
        if not neighbour.is_source:
            for root, held in neighbour.holds.items():
                self._state.transfers[root].rarity.change(*((0, held) if present else (held, 0)))
