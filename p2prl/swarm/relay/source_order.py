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

_SMALL_SHARE = 0.03
"""A share of all uplinks this small is not worth more than the usual copies: the swarm is slower by as much."""

_AT_ONCE_S = 0.2
"""A blob that this node can send to everybody within this time needs no swarm: it would take longer to pass on,
until somebody has it all."""


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
            # Who passes its chunks on gets the next: that shows an uplink, and a claim only breaks ties.
            copy = transfer.first_copies.get(peer)
            kept = (copy.kept if copy is not None else 0) + self._queue.under_way(peer)
            return (0, kept - 1.0 + 1.0 / (1.0 + neighbor.rates.capped().upload_bytes_s)), math.inf
        missing = transfer.missing_bytes(held)
        copies = config.copies_beside_leaders if led else config.source_copies
        is_newcomer = interest.began_at > transfer.completed_at  # it finds the others idle, and they serve it
        if not led and not is_newcomer and transfer.chunks_sent < self._fair_share(transfer, now):
            return (1, float(held.bit_count() + self._queue.under_way(peer))), math.inf
        spent = transfer.chunks_sent >= copies * transfer.total
        # Small blobs are late at once, before a leader can have passed on anything.
        help_at = transfer.began_at + config.source_patience_s if led else -math.inf
        laxity_s = pace.laxity_s(missing, neighbor.rates.capped(), now - transfer.began_at, gain=_SOURCE_GAIN)
        is_late = not spent and pace.is_late(laxity_s)
        if is_late and now >= help_at:
            return (1, laxity_s), math.inf
        alone_at = interest.from_others_at + config.source_patience_s * (_DESPERATE if spent else 1)
        if now >= alone_at:
            return (2, float(missing)), math.inf
        return None, min(alone_at, help_at) if is_late else alone_at

    def _fair_share(self, transfer: Transfer, now: float) -> float:
        """Chunks that are this node's to send by now: of all that anybody gets, the share that its uplink has of all
        uplinks, as far as that share matters."""
        everybody = len(transfer.interested) * transfer.total
        own = self._state.upload_bytes_s / transfer.ref.chunk_bytes
        if math.isinf(transfer.completed_at) and everybody <= own * _AT_ONCE_S:
            return math.inf
        others = max(transfer.foreign_gains.rate(now), transfer.foreign_gains.mean_rate(now))
        if not own or not others:
            return 0.0
        share = (1.0 + _SMALL_SHARE) * own / (own + others) - _SMALL_SHARE
        return share * (transfer.chunks_sent + transfer.foreign_gains.total)

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
            self._led[transfer.root] = frozenset(found if carry_it(uploads, state.upload_bytes_s) else ())
        return self._led[transfer.root]

    def _are_leading(self, led: frozenset[PeerId], transfer: Transfer) -> bool:
        """Whether some leader still lacks a chunk that nobody was sent."""
        neighbors, root = self._state.neighbors, transfer.root
        return any(p in transfer.interested and transfer.unsent & ~neighbors[p].held.get(root, 0) for p in led)
