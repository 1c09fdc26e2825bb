"""Chunk relay settings."""

from __future__ import annotations

from dataclasses import dataclass

GRANT_S = 2.0
"""Seconds after which an unanswered grant expires: six intercontinental round trips."""

DECLINED_S = 0.5
"""How long a neighbor that declined a grant is granted nothing."""

STALL_S = 3.0
"""Seconds a chunk may be overdue before it is requested from another peer."""

REQUEST_TIMEOUT_S = 8.0
"""Seconds that a neighbor which has delivered nothing yet may take for its first chunk, at least."""

SNUB_S = 30.0
"""How long a neighbor that kept timing out is snubbed, seconds."""

BUSY_RETRY_S = 0.5
"""Seconds after which a neighbor refused for lack of a grant may ask again."""

LEAST_WINDOW = 4
"""Chunks that may always be requested, however slow the downlink."""

LEAST_WINDOW_BYTES = 2 * 1024 * 1024
"""The same in bytes while the downlink is unknown: four chunks of 64 KiB for each round trip kept a first download
at a third of a line of 20 Mbit/s and 150 ms."""

SOURCE_PATIENCE_S = 1.5
"""Seconds without a chunk from a volunteer after which the learner helps a peer that lacks some."""

COPIES_BESIDE_LEADERS = 2.25
"""The same while public peers pass the blob on as fast as the learner sends it: they serve those that are late."""

ENDGAME_GAIN = 0.7
"""A requested chunk is requested from a second neighbor only if it would arrive within this share of the time
left."""

DUPLICATE_SHARE = 0.01
"""Most second requests, as a share of the blob's chunks."""

PROGRESS_S = 1.0
"""Neighbors that hold the whole blob are sent progress this often: it orders their queue."""

REQUERY_S = 5.0
"""Neighbors are queried again after this long without progress: an announcement may have been lost."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RelayConfig:
    """Rates, timeouts and limits of the relay; the defaults suit home links.

    More than twelve fields, because each is one independent limit that simulations and measurements set.
    """

    upload_bytes_s: float = 0.0
    """This node's uplink, bytes/s; 0 while unknown. Sets its upload slots and its rank with other peers."""
    download_bytes_s: float = 0.0
    """This node's downlink, bytes/s; 0 while unknown."""
    pipeline_depth: int = 2
    """Grants and waiting requests per pair: one being served, one behind it, so that no link waits a round trip."""
    least_bytes_s: float = 62_500.0
    """An uplink this slow, half a Mbit/s, gets the time for two chunks: nobody waits longer, whatever a peer claims."""
    strikes: int = 3
    """Timeouts after which a neighbor is snubbed: no chunks are requested from it for `snub_s`."""
    window_s: float = 2.0
    """Seconds of downlink capacity that may be requested ahead: more would only delay each chunk."""
    circuit_patience_s: float = 30.0
    """Seconds without a chunk from elsewhere after which a peer is served through a circuit. The peer that relays the
    circuit is a neighbor of both, and can pass each chunk on once, instead of carrying it for every pair."""
    circuit_bytes_s: float = 250_000.0
    """Weights that a volunteer sends through circuits, bytes/s over all peers: 2 Mbit/s of its relays' uplinks, which
    carry them twice. The learner's own weights are not bounded: they may have no other way."""
    source_copies: float = 2.25
    """Copies of a blob the learner sends to keep the swarm on time; past it, only to peers that get nothing else."""
    announce_s: float = 0.1
    """New chunks are announced to neighbors at most this often: a frame costs far more than the bit in it."""
