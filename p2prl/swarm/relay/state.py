"""What the chunk relay keeps in mind: its dials, its transfers and its view of each neighbour."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field

from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import PeerId
from p2prl.protocol.manifests import BlobRef
from p2prl.protocol.wire_codec import Wire
from p2prl.swarm.ports import BlobStore, Randomness
from p2prl.swarm.relay.chunk_selection import Rarity
from p2prl.swarm.relay.peer_selection import Pace, Rates

_REMEMBERED_REQUESTS = 16_384
"""Requests remembered per neighbour (512 KiB): far more than can be late at once."""

_SMOOTHING = 0.3
"""Weight of the newest chunk in a neighbour's measured pace."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RelayConfig:
    """Dials of the relay; the defaults suit home links."""

    upload_bytes_s: float = 0.0
    """What this node's uplink may carry, bytes/s; 0 while unknown. Sets its slots and its place with others."""
    download_bytes_s: float = 0.0
    """What its downlink carries, bytes/s; 0 while unknown."""
    pipeline_depth: int = 2
    """Grants and waiting requests of one pair: one being served, one behind it, so that no link waits a round trip."""
    grant_s: float = 2.0
    """A grant that nobody answered lapses: a round trip to the other side of the world, six times over."""
    declined_s: float = 0.5
    """How long a neighbour that had no use for a grant is granted nothing."""
    stall_s: float = 3.0
    """Seconds without a byte of a chunk, beyond the time it should take, after which it is asked of somebody else."""
    request_timeout_s: float = 8.0
    """The same for a neighbour that has not said its rates: a 512 KiB chunk at half a Mbit/s."""
    strikes: int = 3
    """Timeouts after which a neighbour is not asked for chunks for `snub_s`."""
    snub_s: float = 30.0
    """How long a neighbour that kept timing out is left alone, seconds."""
    busy_retry_s: float = 0.5
    """When a neighbour refused for lack of a grant may ask again, seconds."""
    window_s: float = 2.0
    """Chunks under way are at most what the downlink takes in this time: more would only make each of them late."""
    least_window: int = 4
    """Chunks that may always be under way, however slow the downlink."""
    source_patience_s: float = 1.5
    """Seconds without a chunk from a volunteer after which the learner helps a peer that lacks some."""
    source_copies: float = 2.75
    """Copies of a blob the learner sends to keep the swarm on time; past it, only to peers that get nothing else."""
    endgame_gain: float = 0.7
    """A chunk under way is asked of a second neighbour only if it would come within this share of the time left."""
    duplicate_share: float = 0.01
    """Second requests, over the chunks of the blob."""
    announce_s: float = 0.1
    """A volunteer tells its neighbours of new chunks at most this often: a frame costs far more than the bit in it."""
    progress_s: float = 1.0
    """Those that hold it all hear how far a volunteer is this often: it orders their queue."""
    requery_s: float = 5.0
    """Neighbours are asked again what they hold after this long without progress: an announcement was lost."""


@dataclass(slots=True)
class Watcher:
    """What a neighbour has been told of a blob."""

    told: int = 0
    told_at: float = -math.inf


@dataclass(slots=True)
class Transfer:
    """A blob this node holds or fetches. Sets of chunks are whole numbers (`bitsets`)."""

    ref: BlobRef
    root: Digest
    have: int
    origin: bool
    """Whether this node made the blob (the learner's own weights): super-seeding applies."""
    wanted: bool
    began_at: float
    progressed_at: float
    """When the last chunk arrived, or the transfer began."""
    queried_at: float
    """When neighbours were last asked what they hold."""
    total: int = field(init=False)
    whole: int = field(init=False)
    rarity: Rarity = field(init=False)
    flying: int = 0
    """Chunks asked for that have not come."""
    duplicates: int = 0
    """Second requests made in the endgame."""
    watchers: dict[PeerId, Watcher] = field(default_factory=dict)
    """Neighbours to be told of new chunks: those that fetch it, and those that serve it and order their queue by it."""
    news: bool = False
    """Whether some watcher may have to be told something."""
    announced_at: float = -math.inf
    takers: dict[PeerId, Taker] = field(default_factory=dict)
    """Neighbours that asked for it and lack some of it."""
    unsent: int = 0
    """Origin only: chunks nobody was sent and nobody has a grant for."""
    chunks_sent: int = 0
    """Origin only."""
    pace: Pace | None = None
    """Computed when first needed, and again when rates change."""

    def __post_init__(self) -> None:
        self.total = len(self.ref.chunks)
        self.whole = (1 << self.total) - 1
        self.rarity = Rarity(self.total)

    @property
    def complete(self) -> bool:
        return self.have == self.whole

    @property
    def arriving(self) -> bool:
        """Whether chunks of it are still to be fetched."""
        return self.wanted and self.have != self.whole

    def missing_bytes(self, held: int) -> int:
        """Bytes that a holder of that set lacks, to a chunk."""
        return (self.total - held.bit_count()) * self.ref.chunk_bytes


@dataclass(slots=True)
class Taker:
    """A neighbour that lacks chunks of a blob."""

    given: int = 0
    """Chunks we sent it."""
    elsewhere: int = 0
    """How many it has that we did not send."""
    elsewhere_at: float = 0.0
    """When that last grew."""
    quiet_until: float = -math.inf
    """It had no use for a grant, or did not answer one."""


@dataclass(slots=True)
class Holder:
    """A neighbour as the relay sees it."""

    is_source: bool
    """Whether it is the learner, whose uplink is to be spared."""
    ever_asked: dict[Digest, None]
    """Insertion-ordered and bounded: a late answer to a request taken back is no fault."""
    holds: dict[Digest, int] = field(default_factory=dict)
    """What it said it has, by blob."""
    asked: dict[Digest, Asked] = field(default_factory=dict)
    """Outstanding requests by chunk; the oldest stands first."""
    rates: Rates = field(default_factory=Rates)
    chunk_s: float = 0.0
    """Smoothed time from request to arrival; 0 before the first chunk."""
    strikes: int = 0
    snubbed_until: float = -math.inf

    def note_request(self, chunk: Digest, now: float, deadline: float) -> None:
        """A request leaves for it."""
        self.asked[chunk] = Asked(now, deadline)
        self.ever_asked[chunk] = None
        if len(self.ever_asked) > _REMEMBERED_REQUESTS:
            del self.ever_asked[next(iter(self.ever_asked))]

    def note_arrival(self, took_s: float) -> None:
        """A chunk it was asked for has come."""
        self.strikes = 0
        self.chunk_s = took_s if not self.chunk_s else (1 - _SMOOTHING) * self.chunk_s + _SMOOTHING * took_s


@dataclass(frozen=True, slots=True)
class Asked:
    """An outstanding request."""

    at: float
    deadline: float


@dataclass(slots=True)
class RelayStats:
    """Bytes of weight chunks moved by this node."""

    received_from_source: int = 0
    received_from_peers: int = 0
    sent: int = 0
    wasted: int = 0
    """Received although already held."""


@dataclass(slots=True)
class RelayState:
    """What both halves of the relay work on."""

    store: BlobStore
    rng: Randomness
    config: RelayConfig
    transfers: dict[Digest, Transfer] = field(default_factory=dict)
    neighbours: dict[PeerId, Holder] = field(default_factory=dict)
    former: OrderedDict[PeerId, dict[Digest, None]] = field(default_factory=OrderedDict)
    """What former neighbours were asked: their answers may outlive the link."""
    places: dict[Digest, dict[tuple[Digest, int], None]] = field(default_factory=dict)
    """Chunk → every (blob, index) it fills. Equal chunks, of one blob or of two versions, travel once."""
    stats: RelayStats = field(default_factory=RelayStats)
    outbox: list[tuple[PeerId, Wire]] = field(default_factory=list)

    def held(self, chunk: Digest) -> tuple[Transfer, int] | None:
        """A blob and index where this node holds the chunk."""
        for root, index in self.places.get(chunk, ()):
            transfer = self.transfers[root]
            if transfer.have >> index & 1:
                return transfer, index
        return None
