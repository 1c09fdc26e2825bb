"""Order in which the learner grants its own blobs: first copies, then help for those that the swarm serves late.

Leaders (`p2prl.swarm.relay.leaders`) get the first copy where there are some, and everybody else waits for them as for
any volunteer. Pure.
"""

from __future__ import annotations

import math

from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import PeerId
from p2prl.swarm.relay.grant_order import Pace, Rank, observed_pace, rank
from p2prl.swarm.relay.leaders import carry_it
from p2prl.swarm.relay.relay_config import COPIES_BESIDE_LEADERS, SOURCE_PATIENCE_S
from p2prl.swarm.relay.state import Interest, RelayState, Transfer
from p2prl.swarm.relay.upload_slots import UploadSlots

_PACE_S = 1.0
"""How often the pace is found anew."""


def count_gains(transfer: Transfer, interest: Interest, held: int, from_others: int, now: float) -> None:
    """Note the number of chunks that a neighbor announced: in all, and those that we did not send."""
    if now > interest.began_at:  # what it had when it asked is no progress
        transfer.gains.add(max(0, held - interest.held), now)
        if from_others > interest.from_others:
            # Not before the first one: where nobody lacked what others had, nothing shows how fast they are.
            transfer.foreign_gains.add(from_others - interest.from_others, now)
    interest.held, interest.from_others = held, from_others


def pace_now(state: RelayState, transfer: Transfer, now: float) -> Pace:
    """How fast the blob spreads among the neighbors; what they claim does not matter."""
    if transfer.pace is None or now >= transfer.paced_at + _PACE_S:
        held = (state.neighbors[peer].held.get(transfer.root, 0) for peer in transfer.interested)
        lacking = [transfer.missing_bytes(chunks) for chunks in held]
        gained_bytes_s = transfer.gains.rate(now) * transfer.ref.chunk_bytes
        own = state.upload_bytes_s if transfer.origin else 0.0
        least_s = transfer.ref.size_bytes / own if own else 0.0
        transfer.pace = observed_pace(lacking, gained_bytes_s, now - transfer.began_at, least_s=least_s)
        transfer.paced_at = now
    return transfer.pace


_DESPERATE = 4
"""A peer without a volunteer's chunk for this many times the learner's patience is served even past
`RelayConfig.source_copies`."""

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
        self, peer: PeerId, interest: Interest, transfer: Transfer, now: float
    ) -> tuple[tuple[int, Rank] | None, float]:
        """(its class and its rank in that, ∞), or (None, when to look again) while volunteers serve it."""
        neighbor, config = self._state.neighbors[peer], self._state.config
        held, led = neighbor.held.get(transfer.root, 0), self._leaders(transfer, now)
        coming = self._queue.under_way(peer)
        if transfer.unsent & ~held and (peer in led or not self._are_leading(led, transfer)):
            # Who passes its chunks on gets the next: that shows an uplink, and a claim only breaks ties.
            copy = transfer.first_copies.get(peer)
            return (0, rank((copy.kept if copy is not None else 0) + coming, neighbor.rates)), math.inf
        missing = transfer.missing_bytes(held)
        copies = COPIES_BESIDE_LEADERS if led else config.source_copies
        is_newcomer = interest.began_at > transfer.completed_at  # it finds the others idle, and they serve it
        order = rank(interest.chunks(held) + coming, neighbor.rates)
        if not is_newcomer and self.is_behind(transfer, now):
            return (1, order), math.inf
        spent = transfer.chunks_sent >= copies * transfer.total
        # Small blobs are late at once, before a leader can have passed on anything.
        help_at = transfer.began_at + SOURCE_PATIENCE_S if led else -math.inf
        is_late = not spent and pace_now(self._state, transfer, now).is_late(missing, now - transfer.began_at)
        if is_late and now >= help_at:
            return (1, order), math.inf
        alone_at = interest.from_others_at + SOURCE_PATIENCE_S * (_DESPERATE if spent else 1)
        if now >= alone_at:
            return (2, order), math.inf
        return None, min(alone_at, help_at) if is_late else alone_at

    def is_behind(self, transfer: Transfer, now: float) -> bool:
        """Whether this node has sent less of its own blob than is its to send by now."""
        return not self._leaders(transfer, now) and transfer.chunks_sent < self._fair_share(transfer, now)

    def _fair_share(self, transfer: Transfer, now: float) -> float:
        """Chunks that are this node's to send by now: of what its uplink could have sent, the less the smaller its
        share of all uplinks is. A weak swarm gets nearly all of it to the end, also when its own peers have nothing
        left to send each other."""
        everybody = len(transfer.interested) * transfer.total
        own = self._state.upload_bytes_s / transfer.ref.chunk_bytes
        if math.isinf(transfer.completed_at) and everybody <= own * _AT_ONCE_S:
            return math.inf
        others = max(transfer.foreign_gains.rate(now), transfer.foreign_gains.mean_rate(now))
        if not own or not others:
            return 0.0
        share = own / (own + others)
        return (1.0 + _SMALL_SHARE - _SMALL_SHARE / share) * own * transfer.gains.seen_s(now)

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
