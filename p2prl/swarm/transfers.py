"""What the chunk relay keeps in mind: its dials, its transfers and its view of each neighbour."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import PeerId
from p2prl.protocol.manifests import BlobRef

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
    busy_retry_s: float = 0.5
    """When a neighbour refused for that reason may ask again, seconds."""
    source_patience_s: float = 1.5
    """Seconds without a chunk from a volunteer after which the learner may be asked for what it does not offer us."""
    reveal_window: int = 2
    """Chunks the learner shows a neighbour beyond those it fetched, until each chunk was sent once."""
    reveal_timeout_s: float = 4.0
    """A revealed chunk not fetched within this time is shown to somebody else."""
    announce_s: float = 0.1
    """A volunteer tells its neighbours of new chunks at most this often: a frame costs far more than the bit in it."""
    requery_s: float = 5.0
    """Neighbours are asked again what they hold after this long without progress: an announcement was lost."""


@dataclass(slots=True)
class Transfer:
    """A blob this node holds or fetches."""

    ref: BlobRef
    have: set[int]
    origin: bool
    """Whether this node made the blob (the learner's own weights): super-seeding applies."""
    wanted: bool
    progressed_at: float
    """When the last chunk arrived, or the transfer began."""
    volunteered_at: float
    """When the last chunk from a volunteer arrived, or the transfer began."""
    queried_at: float
    """When neighbours were last asked what they hold."""
    announced_at: float = -math.inf
    """When watchers were last told of chunks."""
    watchers: set[PeerId] = field(default_factory=set)
    """Neighbours that asked about it, and hear of every new chunk they lack."""
    revealed: dict[int, tuple[PeerId, float]] = field(default_factory=dict)
    """Origin only: chunk → (neighbour it was shown to, when) until it was sent once."""
    sent_once: set[int] = field(default_factory=set)
    stale: set[PeerId] = field(default_factory=set)
    """Watchers that have not yet been told of the latest chunks."""

    @property
    def total(self) -> int:
        """Chunks in the blob."""
        return len(self.ref.chunks)

    @property
    def complete(self) -> bool:
        return len(self.have) == len(self.ref.chunks)

    @property
    def arriving(self) -> bool:
        """Whether chunks of it are still to be fetched."""
        return self.wanted and not self.complete


@dataclass(slots=True)
class Holder:
    """A neighbour as the relay sees it."""

    is_source: bool
    """Whether it is the learner, whose uplink is to be spared."""
    ever_asked: dict[Digest, None]
    """Insertion-ordered and bounded: a late answer to a request taken back is no fault."""
    holds: dict[Digest, set[int]] = field(default_factory=dict)
    asked: dict[Digest, float] = field(default_factory=dict)
    """Chunk digest → deadline of the outstanding request; the oldest stands first."""
    uploads: int = 0
    strikes: int = 0
    snubbed_until: float = -math.inf

    def has_room(self, depth: int, now: float) -> bool:
        """Whether another request may be sent to it."""
        return len(self.asked) < depth and self.snubbed_until <= now

    def note_request(self, chunk: Digest, deadline: float) -> None:
        """A request leaves for it."""
        self.asked[chunk] = deadline
        self.ever_asked[chunk] = None
        if len(self.ever_asked) > _REMEMBERED_REQUESTS:
            del self.ever_asked[next(iter(self.ever_asked))]


@dataclass(slots=True)
class RelayStats:
    """Bytes of weight chunks moved by this node."""

    received_from_source: int = 0
    received_from_peers: int = 0
    sent: int = 0
    wasted: int = 0
    """Received although already held."""


def bitmap_of(indices: Iterable[int], total: int) -> bytes:
    """One bit a chunk, the first in the lowest bit of the first byte."""
    bits = bytearray((total + 7) // 8)
    for index in indices:
        bits[index >> 3] |= 1 << (index & 7)
    return bytes(bits)


def indices_of(bitmap: bytes, total: int) -> set[int]:
    """The chunks a bitmap names; bits past `total` are ignored."""
    return {index for index in range(min(total, 8 * len(bitmap))) if bitmap[index >> 3] >> (index & 7) & 1}
