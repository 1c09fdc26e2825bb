"""Progress of the neighbors that want a blob, as their announcements show it, and the pace that follows from it."""

from __future__ import annotations

from p2prl.swarm.relay.peer_selection import Pace, observed_pace
from p2prl.swarm.relay.state import Interest, RelayState, Transfer

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
