"""State shared by the relay's download and upload halves: blobs in transfer, neighbors, counters."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from p2prl.errors import StaleWorkError
from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import PeerId
from p2prl.protocol.link_messages import Chunk, Have, Place
from p2prl.protocol.manifests import BlobRef
from p2prl.protocol.wire_codec import Wire
from p2prl.swarm.ports import BlobStore, Randomness
from p2prl.swarm.relay.chunk_sets import Rarity, to_bitmap
from p2prl.swarm.relay.grant_order import Pace, Rates
from p2prl.swarm.relay.leaders import FirstCopy, Leaders
from p2prl.swarm.relay.observed_rates import Gains, SendRate
from p2prl.swarm.relay.relay_config import RelayConfig

_REMEMBERED_REQUESTS = 16_384
"""Requests remembered per neighbor (512 KiB): far more than can be late at once."""

ANNOUNCED_BYTES = 64 * 1024
"""Sets of chunks remembered of one neighbor: of fifteen blobs of 140 GB, or of two of the largest. On all links 64 MiB:
keys are free, and each could name every chunk of every version."""

_HAVE_BYTES = 48
"""Of an announcement, without its bitmap, at most."""

_SMOOTHING = 0.3
"""Weight of the newest chunk in a neighbor's measured chunk time."""


@dataclass(slots=True)
class Subscription:
    """A neighbor that is sent our `Have` messages for a blob: the set it was sent last, and when."""

    sent: int = 0
    sent_at: float = -math.inf


@dataclass(slots=True)
class Interest:
    """A neighbor's interest in a blob it lacks chunks of."""

    uploaded: int = 0
    """Chunks we sent it."""
    sends: int = 0
    """How many chunks we sent it, one that it asked for twice counted twice."""
    from_others: int = 0
    """Number of chunks it has that we did not send."""
    from_others_at: float = 0.0
    """When that number last grew."""
    paused_until: float = -math.inf
    """It declined a grant, or did not answer one."""
    foreign: int = 0
    """Chunks it has that we did not send, as counted so far."""
    held: int = 0
    """Number of chunks it has."""
    began_at: float = -math.inf
    """When it asked for the blob first."""

    def chunks(self, held: int) -> int:
        """How many chunks it has had: what it announced, and what we sent it, whether it says so or not."""
        return max((held | self.uploaded).bit_count(), self.sends)

    def note_sent(self, index: int) -> None:
        """We sent it a chunk."""
        self.uploaded |= 1 << index
        self.sends += 1

    def pause(self, until: float) -> None:
        """Grant it nothing before that time."""
        self.paused_until = max(self.paused_until, until)


@dataclass(slots=True)
class Transfer:
    """A blob this node holds or downloads. Sets of chunks are integers (`chunk_sets`).

    More than twelve fields, because the download and upload halves of the relay share this one record of a blob.
    """

    ref: BlobRef
    root: Digest
    have: int
    origin: bool
    """Whether this node made the blob (the learner's own weights): super-seeding applies."""
    wanted: bool
    """Whether this node downloads it; an origin does not."""
    began_at: float
    progressed_at: float
    """When the last chunk arrived, or the transfer began."""
    queried_at: float
    """When neighbors were last queried."""
    total: int = field(init=False)
    """Number of chunks."""
    all_chunks: int = field(init=False)
    """The set of all chunks."""
    rarity: Rarity = field(init=False)
    requested: int = 0
    """Chunks requested and not received."""
    duplicates: int = 0
    """Second requests made in the endgame."""
    subscriptions: dict[PeerId, Subscription] = field(default_factory=dict)
    """Neighbors to be sent our new chunks: those that download the blob, and those that serve it and rank us by it."""
    have_changed: bool = False
    """Whether some subscriber may have to be sent a `Have`."""
    announced_at: float = -math.inf
    interested: dict[PeerId, Interest] = field(default_factory=dict)
    """Neighbors that queried it and lack some of its chunks."""
    unsent: int = 0
    """Origin only: chunks sent to nobody and granted to nobody."""
    chunks_sent: int = 0
    """Origin only."""
    completed_at: float = math.inf
    """When the first neighbor had it all."""
    first_copies: dict[PeerId, FirstCopy] = field(default_factory=dict)
    """Origin only: chunks that each neighbor got before anybody else."""
    first_holders: dict[int, PeerId] = field(default_factory=dict)
    """Origin only: who got each chunk before anybody else."""
    gains: Gains = field(default_factory=Gains)
    """Chunks gained by the neighbors that want it."""
    foreign_gains: Gains = field(default_factory=Gains)
    """Those of them that we did not send."""
    pace: Pace | None = None
    """Computed when first needed, and again after `PACE_S`."""
    paced_at: float = -math.inf

    def __post_init__(self) -> None:
        self.total = self.ref.total
        self.all_chunks = (1 << self.total) - 1
        self.rarity = Rarity(self.total)

    @property
    def complete(self) -> bool:
        """Whether this node holds every chunk."""
        return self.have == self.all_chunks

    @property
    def downloading(self) -> bool:
        """Whether chunks of it are still to be downloaded."""
        return self.wanted and self.have != self.all_chunks

    def missing_bytes(self, held: int) -> int:
        """Bytes that a peer with these chunks lacks, rounded up to whole chunks."""
        return (self.total - held.bit_count()) * self.ref.chunk_bytes


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A chunk request that is not answered yet."""

    at: float
    patience_s: float
    """How long it waits from then, or from its neighbor's last chunk."""


@dataclass(slots=True)
class Neighbor:
    """A linked peer as the relay sees it.

    More than twelve fields, because both halves of the relay judge a peer by what it did for the other.
    """

    is_source: bool
    """Whether it is the learner, whose uplink is scarce."""
    request_history: dict[Place, None]
    """Every chunk requested from it, oldest first, bounded: a late answer to a cancelled request is no fault."""
    held: dict[Digest, int] = field(default_factory=dict)
    """Chunks it announced, by blob."""
    shown: set[Digest] = field(default_factory=set)
    """Blobs of this node that it was shown on this link."""
    late_haves: dict[Digest, bytes] = field(default_factory=dict)
    """Its newest announcement of each blob that came too fast after the one before."""
    pending: dict[Place, PendingRequest] = field(default_factory=dict)
    """Pending requests by chunk, oldest first."""
    rates: Rates = field(default_factory=Rates)
    chunk_s: float = 0.0
    """Smoothed time from request to arrival; 0 before the first chunk."""
    strikes: int = 0
    """Timeouts since its last chunk."""
    snubbed_until: float = -math.inf
    delivered: int = 0
    """Requested chunks that arrived since its last timeout."""
    leftovers: int = 0
    """Chunks it sent that may have been requested before this node restarted."""
    heard_at: float = -math.inf
    """When its last chunk arrived."""

    @property
    def has_delivered(self) -> bool:
        """Whether a requested chunk ever came from it."""
        return self.heard_at > -math.inf

    def forget(self, root: Digest) -> None:
        """A blob is dropped."""
        self.held.pop(root, None)
        self.shown.discard(root)
        self.late_haves.pop(root, None)

    def note_held(self, root: Digest, held: int) -> list[tuple[Digest, int]]:
        """It announced these chunks of a blob. Returns (root, its set) of the blobs that are forgotten for that, those
        announced longest ago."""
        self.held.pop(root, None)
        self.held[root] = held
        forgotten = []
        excess = sum(chunks.bit_length() for chunks in self.held.values()) // 8 - ANNOUNCED_BYTES
        while excess > 0 and len(self.held) > 1:
            oldest = next(iter(self.held))
            forgotten.append((oldest, self.held.pop(oldest)))
            excess -= forgotten[-1][1].bit_length() // 8
        return forgotten

    def note_late(self, root: Digest, bitmap: bytes) -> None:
        """Its newest announcement of a blob came too fast after the one before."""
        self.late_haves.pop(root, None)
        self.late_haves[root] = bitmap
        while len(self.late_haves) > 1 and sum(map(len, self.late_haves.values())) > ANNOUNCED_BYTES:
            del self.late_haves[next(iter(self.late_haves))]

    def deadline(self, chunk: Place) -> float:
        """When a request to it is overdue: a neighbor that sends other chunks meanwhile is not silent."""
        request = self.pending[chunk]
        return max(request.at, self.heard_at) + request.patience_s

    def share_within(self, span_s: float) -> float:
        """Share of a chunk that arrives from it in this time, as fast as its chunks came so far."""
        return span_s / max(span_s, self.chunk_s)

    def note_request(self, chunk: Place, now: float, patience_s: float) -> None:
        """A request is sent to it."""
        self.pending[chunk] = PendingRequest(now, patience_s)
        self.request_history[chunk] = None
        if len(self.request_history) > _REMEMBERED_REQUESTS:
            del self.request_history[next(iter(self.request_history))]

    def note_arrival(self, took_s: float, now: float) -> None:
        """A requested chunk has arrived."""
        self.strikes, self.heard_at = 0, now
        self.delivered += 1
        self.chunk_s = took_s if not self.chunk_s else (1 - _SMOOTHING) * self.chunk_s + _SMOOTHING * took_s


@dataclass(slots=True)
class RelayStats:
    """Bytes of weight chunks moved by this node."""

    received_from_source: int = 0
    received_from_peers: int = 0
    received_over_circuits: int = 0
    """Of both: what crossed the uplink of a third peer on its way."""
    sent: int = 0
    wasted: int = 0
    """Received although already held."""


@dataclass(slots=True)
class RelayState:
    """State both halves of the relay work on.

    More than twelve fields, because the owner's rules about peers are here for both.
    """

    store: BlobStore
    rng: Randomness
    config: RelayConfig
    transfers: dict[Digest, Transfer] = field(default_factory=dict)
    neighbors: dict[PeerId, Neighbor] = field(default_factory=dict)
    former_requests: OrderedDict[PeerId, dict[Place, None]] = field(default_factory=OrderedDict)
    """Request histories of former neighbors: their answers may outlive the link."""
    stats: RelayStats = field(default_factory=RelayStats)
    outbox: list[tuple[PeerId, Wire]] = field(default_factory=list)
    leaders: Leaders = field(default_factory=Leaders)
    send_rate: SendRate = field(default_factory=SendRate)
    proves: Callable[[BlobRef, int, bytes, bytes], bool] = BlobRef.proves
    """Whether bytes are those of a chunk of a blob, with a proof."""
    may_show: Callable[[PeerId, int, float, bool], bool] = lambda *_: True
    """Counts an announcement: (peer, bytes, now, whether it needs no credit)."""
    is_relayed: Callable[[PeerId], bool] = lambda _: False
    """Whether the link to a peer passes a circuit: its bytes cross the uplink of a third peer, twice."""

    def show(self, peer: PeerId, transfer: Transfer, now: float, *, is_asked: bool = True) -> bool:
        """Tell a peer which chunks this node has, unless the budget for answers has no room for that now.

        A peer that has asked is told once on each link in any case.
        """
        neighbor, size_bytes = self.neighbors[peer], _HAVE_BYTES + (transfer.total + 7) // 8
        is_free = is_asked and transfer.root not in neighbor.shown
        if not self.may_show(peer, size_bytes, now, is_free):
            return False
        neighbor.shown.add(transfer.root)
        self.outbox.append((peer, Have(transfer.root, to_bitmap(transfer.have, transfer.total))))
        return True

    @property
    def upload_bytes_s(self) -> float:
        """This node's uplink: as configured or capped, else as found while sending; 0 while unknown."""
        return self.config.upload_bytes_s or self.send_rate.bytes_s

    def held_by_any(self, transfer: Transfer) -> int:
        """Chunks of a blob that this node or a neighbor has, as a set of bits: the learner has all."""
        held = transfer.have
        for neighbor in self.neighbors.values():
            held |= transfer.all_chunks if neighbor.is_source else neighbor.held.get(transfer.root, 0)
        return held

    def holder(self, chunk: Place) -> Transfer | None:
        """The blob of a chunk, if this node holds the chunk."""
        root, index = chunk
        transfer = self.transfers.get(root)
        return transfer if transfer is not None and transfer.have >> index & 1 else None

    def is_ready(self, chunk: Place) -> bool:
        """Whether a request for a chunk can be answered at once. One for a chunk that this node lacks can."""
        held = self.holder(chunk)
        return held is None or self.store.ready(held.ref, chunk[1])

    def read(self, chunk: Place) -> Chunk | None:
        """A chunk, if this node holds it. None also when the store has just forgotten it: a learner forgets old
        versions itself, and its network process a moment later."""
        held, (root, index) = self.holder(chunk), chunk
        if held is None:
            return None
        try:
            return Chunk(root, index, self.store.proof(held.ref, index), self.store.read(held.ref, index))
        except StaleWorkError:
            return None
