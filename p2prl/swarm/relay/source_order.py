"""Order in which the learner grants its own blobs: first copies, then help for those that the swarm serves late.

Leaders (`p2prl.swarm.relay.leaders`) get the first copy where there are some, and everybody else waits for them as for
any volunteer. Pure.
"""

from __future__ import annotations

import math

from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import PeerId
from p2prl.swarm.relay.leaders import carry_it
from p2prl.swarm.relay.peer_selection import Pace, Rank
from p2prl.swarm.relay.state import Interest, RelayState, Transfer
from p2prl.swarm.relay.upload_slots import UploadSlots

_DESPERATE = 4
"""A peer without a volunteer's chunk for this many times the learner's patience is served even past
`RelayConfig.source_copies`."""

_SOURCE_GAIN = 1.0
"""The learner expects no more than one mean uplink per peer: help that arrives too late is useless."""


class SourceOrder:
    """Ranks of the peers that want a blob of this node."""

    def __init__(self, state: RelayState, queue: UploadSlots) -> None:
        self._state = state
        self._queue = queue
        self._led: dict[Digest, frozenset[PeerId]] = {}
        """Leaders of each own blob, as of this pass of grants."""

    def begin(self) -> None:
        """A pass of grants begins: find the leaders anew."""
        self._led.clear()

    def rank(
        self, peer: PeerId, interest: Interest, transfer: Transfer, pace: Pace, now: float
    ) -> tuple[Rank | None, float]:
        """(its rank, ∞), or (None, when to look again) while volunteers serve it."""
        neighbor, config = self._state.neighbors[peer], self._state.config
        held, led = neighbor.held.get(transfer.root, 0), self._leaders(transfer, now)
        if transfer.unsent & ~held and (peer in led or not self._are_leading(led, transfer)):
            uploaded = interest.uploaded.bit_count() + self._queue.under_way(peer)
            return (0, (uploaded + 1) / (neighbor.rates.upload_bytes_s or 1.0)), math.inf
        missing = transfer.missing_bytes(held)
        copies = config.copies_beside_leaders if led else config.source_copies
        spent = transfer.chunks_sent >= copies * transfer.total
        # Small blobs are late at once, before a leader can have passed on anything.
        help_at = transfer.began_at + config.source_patience_s if led else -math.inf
        laxity_s = pace.laxity_s(missing, neighbor.rates, now - transfer.began_at, gain=_SOURCE_GAIN)
        is_late = not spent and pace.is_late(laxity_s)
        if is_late and now >= help_at:
            return (1, laxity_s), math.inf
        alone_at = interest.from_others_at + config.source_patience_s * (_DESPERATE if spent else 1)
        if now >= alone_at:
            return (2, float(missing)), math.inf
        return None, min(alone_at, help_at) if is_late else alone_at

    def _leaders(self, transfer: Transfer, now: float) -> frozenset[PeerId]:
        """Neighbors that lead an own blob; none unless together they upload as fast as this node."""
        if transfer.root not in self._led:
            state = self._state
            present = [
                peer
                for peer, neighbor in state.neighbors.items()
                if peer in transfer.interested or neighbor.held.get(transfer.root, 0) == transfer.all_chunks
            ]
            # Nobody passes anything on where nobody else wants it.
            is_wanted = any(peer not in transfer.first_copies for peer in transfer.interested)
            found = state.leaders.among(present, transfer.first_copies if is_wanted else {}, now)
            uploads = (state.neighbors[peer].rates.upload_bytes_s for peer in found)
            self._led[transfer.root] = frozenset(found if carry_it(uploads, state.config.upload_bytes_s) else ())
        return self._led[transfer.root]

    def _are_leading(self, led: frozenset[PeerId], transfer: Transfer) -> bool:
        """Whether some leader still lacks a chunk that nobody was sent."""
        neighbors, root = self._state.neighbors, transfer.root
        return any(p in transfer.interested and transfer.unsent & ~neighbors[p].held.get(root, 0) for p in led)
