"""Limits on the bodies of large groups that a node holds, requests and sends. All of them together bound its memory."""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.protocol import limits

REQUEST_S = 30.0
"""Seconds without a part after which requests to a peer are dropped: a window at 300 kbit/s."""

PAUSE_S = 5.0
"""Seconds until that peer is asked again: other sources come first, but it may be the only one."""

PATIENCE_S = 900.0
"""Seconds without a new part after which an incomplete body is deleted: home links fail for minutes."""

STALLED_S = 30.0
"""When the disk budget is full, a body that has not gained a part for so long makes room for a new one."""

KEPT_S = 300.0
"""Seconds a body that the owner has taken is still served, to validators, while the budget allows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupBodyConfig:
    """Budgets and timeouts; the defaults suit a learner on a home server.

    Each limit is a field, because none follows from another.
    """

    known: int = 256
    """Headers of other peers remembered, oldest dropped first, and as many own ones: half a MB."""
    known_per_source: int = 32
    """The same for headers that one peer sent first, so that a flood through one link drops only its own."""
    sources: int = 16
    """Peers remembered for one body."""
    window: int = 8
    """Parts requested from one peer at a time, 1 MiB: a round trip of 300 ms at 28 Mbit/s."""
    author_bytes: int = 2 * limits.MAX_GROUP_BYTES
    """Bodies of one author that are requested or wait for the owner: one on its way, one behind it."""
    disk_bytes: int = 256 * 1024 * 1024
    """Bodies of all authors on disk, 20 of the largest size: keys are free, so a bound on each is not enough."""
    bodies: int = 128
    """Bodies of all authors: each is an open file."""
    least_bytes_s: float = 32 * 1024.0
    """The same for a body that arrives more slowly on average: a slow trickle must not hold the budget."""
    own_bytes: int = 64 * 1024 * 1024
    """Bodies of this node's own groups in memory, five of the largest size; the owner supplies others again."""
    sending: int = 16
    """Parts the shell sends at once, 2 MiB."""
    sending_per_peer: int = 4
    """The same to one peer: enough that acknowledgements cost no time."""
    queued_per_peer: int = 32
    """Requests of one peer that may wait."""
    pulled: int = 32
    """Parts requested or held for other peers, 4 MiB: a relay passes them on without storing them."""
