"""Chunk relay: spread weights from peer to peer while they are still arriving.

A node that downloads a blob asks its neighbors which chunks they have and announces its own. A node with a free
upload slot *grants* one neighbor a chunk (`grants`); the neighbor answers with a request for the locally rarest chunk
it can get there, or declines (`download`). So the sender chooses the peer, the receiver chooses the chunk, and neither
waits for a round trip, since grants are sent ahead of free slots. A chunk comes with a proof that it belongs to the
blob, so a wrong one proves a fault of its sender.

Pure: the owner passes messages, `now` and a random source, and drains `outbox` after `flush`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
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
    place_of,
)
from p2prl.protocol.manifests import BlobRef
from p2prl.protocol.wire_codec import Wire
from p2prl.swarm.disk_quota import DiskQuota
from p2prl.swarm.ports import BlobStore, Randomness
from p2prl.swarm.relay.chunk_sets import to_bitmap
from p2prl.swarm.relay.download import ChunkDownloads, check_have
from p2prl.swarm.relay.grant_order import Rates
from p2prl.swarm.relay.grants import ChunkUploads
from p2prl.swarm.relay.relay_config import RelayConfig
from p2prl.swarm.relay.state import Neighbor, RelayState, RelayStats, Transfer
from p2prl.swarm.token_buckets import KeyedBuckets, Rate

_REMEMBERED_PEERS = 256
"""Former neighbors whose requests are remembered: their answers may outlive the link."""

_KBIT_BYTES = 125.0

_HAVE_RATE = Rate(per_s=20.0, burst=32.0)
"""Announcements taken at once from one neighbor: twice as many as honest ones send. Each costs time in proportion to
the blob's chunks, so one for each chunk without a bound would cost their square. Of the rest the newest counts, later.
"""

_LATE_S = 0.05
"""When announcements that came too fast are looked at again."""

_TELL_S = 5.0
_TELL_CHANGE = 1.25
"""An uplink that was found to differ by this factor from what was stated is stated again, at most this often."""


class Relay:
    """Chunk exchange for any number of blobs with any number of neighbors.

    More than twelve attributes, because what limits announcements and stated rates is kept where both halves meet.
    """

    def __init__(self, store: BlobStore, rng: Randomness, config: RelayConfig, quota: DiskQuota | None = None) -> None:
        """`quota` bounds what is stored; without one nothing does."""
        self.quota = quota or DiskQuota()
        """Room is reserved there before a blob is opened."""
        self._state = RelayState(store, rng, config)
        self._uploads = ChunkUploads(self._state)
        self._downloads = ChunkDownloads(self._state)
        self._timer_ran_at = -math.inf
        self._deadline: float | None = None
        self._deadline_valid = False
        """Whether nothing has changed since `_deadline` was computed: it is read far more often than it changes."""
        self._announcements = KeyedBuckets(_HAVE_RATE, capacity=_REMEMBERED_PEERS)
        self._late: dict[PeerId, None] = {}
        """Neighbors of which announcements wait, because they sent too many."""
        self._late_at = math.inf
        self._told_bytes_s = config.upload_bytes_s
        self._told_at = -math.inf
        """The uplink last stated to the neighbors, and when."""
        self.completed: list[Digest] = []
        """Roots of completed blobs, for the owner to take and clear."""

    def check_with(self, proves: Callable[[BlobRef, int, bytes, bytes], bool]) -> None:
        """Check chunks by this instead of `BlobRef.proves`: for simulations in which few bytes stand for many."""
        self._state.proves = proves

    def bound_announcements(self, may_show: Callable[[PeerId, int, float, bool], bool]) -> None:
        """Announce chunks where this counts it: (peer, bytes, now, whether it needs no credit)."""
        self._state.may_show = may_show

    def use_circuits_last(self, is_relayed: Callable[[PeerId], bool]) -> None:
        """Grant chunks to the peers for which this holds only when they get none from elsewhere."""
        self._state.is_relayed = is_relayed

    def feed_public_first(self, is_public: Callable[[PeerId], bool]) -> None:
        """Give the first copy of blobs made here to the peers for which this holds, while they pass it on."""
        self._state.leaders.is_public = is_public

    @property
    def stats(self) -> RelayStats:
        """Bytes moved so far."""
        return self._state.stats

    @property
    def outbox(self) -> list[tuple[PeerId, Wire]]:
        """Messages to send, for the owner to take and clear."""
        return self._state.outbox

    # --- blobs -------------------------------------------------------------------------------------------------

    def offer(self, ref: BlobRef, now: float) -> None:
        """Serve a blob this node made; every chunk must already be in the store."""
        self._deadline_valid = False
        transfer = self._open(ref, now, origin=True, wanted=False)
        transfer.unsent = transfer.have
        self._uploads.due = True

    def fetch(self, ref: BlobRef, now: float) -> None:
        """Download a blob, resuming from the chunks the store already holds.

        Its root appears in `completed` once; at once when the blob is complete already. `MachineError` when the quota
        has no room for it: the caller asks first.
        """
        self._deadline_valid = False
        transfer = self._state.transfers.get(ref.root)
        if transfer is None:
            transfer = self._open(ref, now, origin=False, wanted=True)
            if not transfer.complete:
                self._downloads.query(transfer, now)
        if transfer.complete:
            self._finish(transfer)
        self._uploads.due = True

    def has_room(self, ref: BlobRef) -> bool:
        """Whether a blob is stored already, or fits."""
        return self.quota.holds(ref.root) or not self.quota.lacks(self._state.store.room(ref))

    def measure(self) -> None:
        """Account for complete blobs with the room that they take now."""
        for root, transfer in self._state.transfers.items():
            if transfer.complete:
                self.quota.resize(root, self._state.store.room(transfer.ref))

    def drop(self, root: Digest) -> None:
        """Stop downloading and serving a blob, and free its space."""
        self._deadline_valid = False
        self.quota.release(root)
        transfer = self._state.transfers.pop(root, None)
        if transfer is not None:
            for neighbor in self._state.neighbors.values():
                neighbor.forget(root)
            self._state.store.drop(root)

    def set_upload_rate(self, bytes_s: float) -> None:
        """Set the measured uplink: adjust the upload slots and tell the neighbors."""
        state = self._state
        state.config = replace(state.config, upload_bytes_s=bytes_s)
        self._told_bytes_s = bytes_s
        self._uploads.due = True
        for peer in state.neighbors:
            self._send_rates(peer)

    def allow_uploads(self, allowed: bool) -> None:
        """Set whether anything is granted from now on: the owner's byte budget decides."""
        if allowed != self._uploads.open:
            self._uploads.open = allowed
            self._uploads.due = True

    def progress(self, root: Digest) -> tuple[int, int]:
        """(chunks held, chunks in all) of a blob; (0, 0) when unknown."""
        transfer = self._state.transfers.get(root)
        return (transfer.have.bit_count(), transfer.total) if transfer else (0, 0)

    def progressed_at(self, root: Digest) -> float:
        """When the last chunk of a blob arrived; −∞ when the blob is unknown."""
        transfer = self._state.transfers.get(root)
        return transfer.progressed_at if transfer else -math.inf

    def is_within_reach(self, root: Digest) -> bool:
        """Whether each chunk of a blob is here or at a linked peer, by what they announce; the learner has all."""
        transfer = self._state.transfers.get(root)
        return transfer is not None and self._state.held_by_any(transfer) == transfer.all_chunks

    # --- neighbors --------------------------------------------------------------------------------------------

    @property
    def has_neighbors(self) -> bool:
        """Whether there is anybody to get chunks from."""
        return bool(self._state.neighbors)

    def add_neighbor(self, peer: PeerId, *, is_source: bool) -> None:
        """A link is up. `is_source` marks the learner, whose uplink is scarce."""
        state = self._state
        known = state.neighbors.get(peer)
        if known is not None:
            if known.is_source != is_source:
                self._change_rarity(known, present=False)
                known.is_source = is_source
                self._change_rarity(known, present=True)
            return
        state.neighbors[peer] = Neighbor(is_source, state.former_requests.pop(peer, {}))
        self._send_rates(peer)
        for root, transfer in state.transfers.items():
            if transfer.downloading:
                state.outbox.append((peer, BlobQuery(root)))
                if transfer.have:
                    state.outbox.append((peer, Have(root, to_bitmap(transfer.have, transfer.total))))

    def remove_neighbor(self, peer: PeerId) -> None:
        """The link is gone: cancel its requests and grants."""
        self._deadline_valid = False
        state = self._state
        neighbor = state.neighbors.get(peer)
        if neighbor is None:
            return
        self._downloads.remove_neighbor(peer, neighbor)
        self._uploads.remove_neighbor(peer)
        del state.neighbors[peer]
        state.former_requests[peer] = neighbor.request_history
        if len(state.former_requests) > _REMEMBERED_PEERS:
            state.former_requests.popitem(last=False)

    def upload_of(self, peer: PeerId) -> float:
        """The uplink a neighbor announced, bytes/s; 0 if it has not."""
        neighbor = self._state.neighbors.get(peer)
        return 0.0 if neighbor is None else neighbor.rates.upload_bytes_s

    def upload_done(self, peer: PeerId, delivered: bool = True) -> None:
        """The shell has sent the oldest chunk frame to `peer`, or, if it was not `delivered`, failed to."""
        self._deadline_valid = False
        self._uploads.upload_done(peer, delivered=delivered)

    # --- messages ----------------------------------------------------------------------------------------------

    def receive(self, message: Wire, source: PeerId, now: float) -> None:
        """Handle one relay message. Raises `RemoteProtocolError` when it proves the sender at fault."""
        neighbor = self._state.neighbors.get(source)
        if neighbor is None:
            return
        self._deadline_valid = False
        match message:
            case Have(root=root, bitmap=bitmap):
                if self._announcements.take(source, now):
                    self._note_have(source, neighbor, received_digest(root), bitmap, now)
                elif received_digest(root) in self._state.transfers:
                    check_have(self._state.transfers[Digest(root)], bitmap)
                    neighbor.note_late(Digest(root), bitmap)
                    self._late[source] = None
                    self._late_at = min(self._late_at, now + _LATE_S)
            case ChunkGrant(root=root, index=index):
                self._downloads.on_grant(source, neighbor, received_digest(root), index, now)
            case ChunkRequest():
                self._uploads.on_request(source, place_of(message), now)
            case Chunk():
                if self._downloads.on_chunk(source, neighbor, message, now):
                    self._finish_completed()
                    self._uploads.on_chunk_gained()
            case BlobQuery(root=root):
                self._uploads.on_query(source, received_digest(root), now)
            case GrantDeclined(root=root, retry_ms=retry_ms):
                self._uploads.on_declined(source, received_digest(root), retry_ms, now)
            case ChunkCancel():
                self._uploads.on_cancel(source, place_of(message))
            case ChunkRefused(retry_ms=retry_ms):
                self._downloads.on_refused(source, neighbor, place_of(message), retry_ms, now)
            case LinkRates(upload_kbit_s=upload, download_kbit_s=download):
                neighbor.rates = Rates(max(0, upload) * _KBIT_BYTES, max(0, download) * _KBIT_BYTES)

    def handle_timer(self, now: float) -> None:
        """Cancel requests and grants past their deadline, and repeat queries that brought no progress."""
        self._timer_ran_at, self._deadline_valid = now, False
        self._downloads.handle_timer(now)
        self._uploads.handle_timer(now)

    def next_deadline(self) -> float | None:
        """When `handle_timer` is next due, or None while nothing is pending."""
        if not self._deadline_valid:
            self._deadline = min((at for at in self._deadlines() if at > self._timer_ran_at), default=None)
            self._deadline_valid = True
        return self._deadline

    def flush(self, now: float) -> None:
        """Fill `outbox` with chunks, grants and `Have` messages: once per drain rather than once per chunk."""
        heard = self._take_late_haves(now)
        announced = self._uploads.announce(now)  # first, so that no grant precedes what it is about
        served = self._uploads.serve(now)
        self._deadline_valid &= not (served or announced or heard)
        self._tell_rates(now)

    def _deadlines(self) -> Iterator[float]:
        if not math.isinf(self._late_at):
            yield self._late_at
        yield from self._downloads.deadlines()
        yield from self._uploads.deadlines()

    def _send_rates(self, peer: PeerId) -> None:
        config = self._state.config
        if self._told_bytes_s or config.download_bytes_s:
            upload, download = self._told_bytes_s / _KBIT_BYTES, config.download_bytes_s / _KBIT_BYTES
            self._state.outbox.append((peer, LinkRates(int(upload), int(download))))

    def _tell_rates(self, now: float) -> None:
        """State the uplink that was found while sending, when it is news."""
        found, told = self._state.upload_bytes_s, self._told_bytes_s
        if now < self._told_at + _TELL_S or told / _TELL_CHANGE <= found <= told * _TELL_CHANGE:
            return
        self._told_bytes_s, self._told_at = found, now
        for peer in self._state.neighbors:
            self._send_rates(peer)

    def _note_have(self, source: PeerId, neighbor: Neighbor, root: Digest, bitmap: bytes, now: float) -> None:
        neighbor.late_haves.pop(root, None)
        self._downloads.on_have(source, neighbor, root, bitmap)
        self._uploads.on_have(source, root, now)

    def _take_late_haves(self, now: float) -> bool:
        """Look at announcements that came too fast, as far as the rate allows. Returns whether there were some."""
        if now < self._late_at:
            return False
        self._late_at = math.inf
        for peer in list(self._late):
            neighbor = self._state.neighbors.get(peer)
            while neighbor is not None and neighbor.late_haves and self._announcements.take(peer, now):
                root = next(iter(neighbor.late_haves))
                self._note_have(peer, neighbor, root, neighbor.late_haves[root], now)
            if neighbor is None or not neighbor.late_haves:
                del self._late[peer]
            else:
                self._late_at = now + _LATE_S
        return True

    def _open(self, ref: BlobRef, now: float, *, origin: bool, wanted: bool) -> Transfer:
        state, root = self._state, ref.root
        transfer = state.transfers.get(root)
        if transfer is None:
            self.quota.reserve(root, state.store.room(ref))
            transfer = Transfer(ref, root, 0, origin, wanted, began_at=now, progressed_at=now, queried_at=now)
            for index in state.store.begin(ref):
                transfer.have |= 1 << index
            state.transfers[root] = transfer
        return transfer

    def _finish_completed(self) -> None:
        for transfer in self._downloads.completed:
            self._finish(transfer)
        self._downloads.completed.clear()

    def _finish(self, transfer: Transfer) -> None:
        self._state.store.finish(transfer.ref)
        self.completed.append(transfer.root)

    def _change_rarity(self, neighbor: Neighbor, *, present: bool) -> None:
        if not neighbor.is_source:
            for root, held in neighbor.held.items():
                self._state.transfers[root].rarity.change(*((0, held) if present else (held, 0)))
