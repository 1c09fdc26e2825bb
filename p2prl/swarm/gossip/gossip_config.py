"""Gossip settings of a node: how much is remembered, kept and answered."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class GossipConfig:
    """Gossip settings; the defaults suit swarms of two to several thousand peers."""

    carriers: int = 3
    """Peers that receive a message bound for the learner while no learner is linked."""
    store_bytes: int = 12 * 1024 * 1024
    """Memory of the envelopes kept to answer wants: minutes of a busy swarm."""
    seen: int = 65_536
    """Digests remembered, half of them at least, so that no envelope is forwarded twice: more than a neighbor keeps of
    the smallest envelopes, so nothing that it can still offer is new. 8 MB."""
    offers: int = 262_144
    """Offers remembered over all envelopes and peers: 40 MB at most. Many links may offer the same envelopes."""
    due: int = 32_768
    """Offers to peers that have not asked yet, and envelopes that peers have got without an offer: 8 MB."""
    answer_bytes: int = 4 * 1024 * 1024
    """Bytes of envelopes pushed to one peer, for its wants, between two drains of the outbox. A want costs 33 bytes to
    send and may be answered with 256 KiB: without a bound one frame of wants fills the memory. The asker asks again."""
