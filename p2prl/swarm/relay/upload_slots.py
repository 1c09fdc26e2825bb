"""Upload slots of a node: open grants, waiting requests, chunks the shell is sending.

A peer requests only after a grant, so a request never waits behind more than a few chunks, and no chunk is stuck in
the queue of a sender that serves others first. As many grants are open as there are slots: the answer to one arrives
while a slot is busy, and no uplink waits for a round trip.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import PeerId
from p2prl.protocol.link_messages import Place

BYTES_S_PER_SLOT = 1.25e6
"""10 Mbit/s: with slots of 2.5, 5, 10 and 20 Mbit/s the last of 512 peers finished at 1.73, 1.16, 1.08, 1.11 times
the lower bound."""

_SLOTS_UNKNOWN = 1
"""Slots of an uplink that is not measured yet: its first acknowledgement measures it, and four chunks of 512 KiB would
keep 1 Mbit/s busy for twenty seconds."""

_ROUND_TRIP_S = 0.3
"""An intercontinental round trip."""

_MOST_BEYOND = 32
"""Most of these: 16 MiB of chunks of 512 KiB, which is 400 Mbit/s over a long round trip."""

MOST_UNDER_WAY = 2 * _MOST_BEYOND + 4
"""Most chunks that a peer may have requested from another and not received."""

_PER_PAIR = 2
"""Chunks the shell sends to one peer at once: one on its way, one behind it, so that acknowledgements cost no time."""


_MOST_STUCK = 16
"""Overdue chunks that the shell may hold for one peer when nobody else wants any; otherwise it may hold one."""


def slots_for(upload_bytes_s: float) -> int:
    """Chunks sent at once on an uplink of this rate; 0 stands for an unknown rate."""
    if upload_bytes_s <= 0:
        return _SLOTS_UNKNOWN
    return min(8, max(1, round(upload_bytes_s / BYTES_S_PER_SLOT)))


def pipeline_for(upload_bytes_s: float, chunk_bytes: int) -> int:
    """Chunks sent before the first is acknowledged: the slots, one more, and those that leave in a round trip."""
    return slots_for(upload_bytes_s) + 1 + (in_flight(upload_bytes_s, chunk_bytes) if upload_bytes_s > 0 else 0)


def ahead_for(upload_bytes_s: float, chunk_bytes: int) -> int:
    """Chunks granted or waiting beside those that the shell sends: as many again but for one. None on a line that
    needs more than a round trip for a chunk: each would arrive a chunk's time later, and the last are waited for."""
    if 0 < upload_bytes_s * _ROUND_TRIP_S < chunk_bytes:
        return 0
    return pipeline_for(upload_bytes_s, chunk_bytes) - 1


def in_flight(upload_bytes_s: float, chunk_bytes: int) -> int:
    """Chunks that leave an uplink of this rate in a round trip; one while the rate is unknown."""
    if upload_bytes_s <= 0:
        return _SLOTS_UNKNOWN
    return int(upload_bytes_s * _ROUND_TRIP_S / chunk_bytes) if chunk_bytes else 0


def depth_beyond(delivered: int, in_flight_chunks: int = _MOST_BEYOND) -> int:
    """Chunks beyond the usual depth that may be under way between two peers: both sides count those delivered so far,
    so that a peer which states a large uplink has to prove it before it may hold that many requests."""
    return max(0, min(delivered, in_flight_chunks, _MOST_BEYOND))


def under_way_at_most(pair_depth: int, beyond: int) -> int:
    """Grants, waiting requests and chunks being sent between two peers: one round trip passes from a grant to its
    request, and another one from the chunk to its acknowledgement. With one round trip's chunks for both, a line of
    150 ms came to rest at half of its rate, which its sender then took for the whole."""
    return pair_depth + _PER_PAIR + 2 * beyond


@dataclass(frozen=True, slots=True)
class Grant:
    """Permission for a peer to request one chunk of a blob."""

    peer: PeerId
    root: Digest
    reserved: int
    """Set of the only chunks it may request; 0 for any."""
    deadline: float


@dataclass(frozen=True, slots=True)
class Upload:
    """A requested chunk."""

    peer: PeerId
    chunk: Place


class UploadSlots:
    """Counts grants, requests and sends, and selects the next upload.

    More than twelve attributes, because every bound on what a peer may hold is counted in one place.
    """

    def __init__(self, slots: int, pair_depth: int) -> None:
        """`pair_depth` bounds grants and waiting requests of one peer."""
        self.slots = slots
        self.pipeline = slots + 1
        """Chunks the shell sends at once."""
        self.ahead = slots
        """Chunks granted or waiting beside those."""
        self.share = 0
        """Of the chunks that leave in a round trip, those for each peer that wants some."""
        self.awaits_chunk = False
        """Whether a slot was free at the last `next_upload` for a request whose chunk was not ready."""
        self.grants_beyond = True
        """Whether peers are granted more than the usual depth; what they were granted is sent in any case."""
        self._delivered: dict[PeerId, int] = {}
        """Chunks that each peer has acknowledged since it last declined a grant."""
        self._proven: set[PeerId] = set()
        """Peers that have acknowledged a chunk, and whose last one was."""
        self._held_unproven: int | None = None
        """What `_unproven` found since a count changed."""
        self._stuck: dict[PeerId, int] = {}
        """Chunks past their deadline that the shell still holds, by peer; no peer is listed with 0."""
        self._pair_depth = pair_depth
        self._grants: deque[Grant] = deque()
        self._waiting: deque[Upload] = deque()
        self._ahead: dict[PeerId, int] = {}
        """Grants and waiting requests by peer; no peer is listed with 0."""
        self._sending: dict[PeerId, int] = {}
        """Chunks the shell is sending, by peer; no peer is listed with 0."""
        self._sending_deadlines: deque[tuple[float, PeerId]] = deque()

    @property
    def room(self) -> int:
        """Grants that may still be made."""
        return self.pipeline + self.ahead - len(self._grants) - len(self._waiting) - len(self._sending_deadlines)

    def under_way(self, peer: PeerId) -> int:
        """Chunks the peer will have beyond those it announced, if all arrive."""
        return self._ahead.get(peer, 0) + self._sending.get(peer, 0)

    def may_grant(self, peer: PeerId) -> bool:
        """Whether the pair's pipeline has room for another grant.

        A peer that has acknowledged nothing yet gets one chunk, and all of them together half of the pipeline while
        others wait that do: keys cost nothing, and each chunk for a silent one holds memory and a slot.
        """
        if peer not in self._proven:
            if self._stuck.get(peer, 0) >= _MOST_STUCK:
                return False
            if self._proven and (self.under_way(peer) or self._unproven() >= max(1, self.pipeline // 2)):
                return False
        beyond = self._beyond(peer) if self.grants_beyond else 0
        return self._ahead.get(peer, 0) < self._pair_depth + beyond and self.under_way(peer) < under_way_at_most(
            self._pair_depth, beyond
        )

    def is_stuck(self, peer: PeerId) -> bool:
        """Whether the shell still holds a chunk for the peer that is overdue."""
        return peer in self._stuck

    def declined(self, peer: PeerId) -> None:
        """A peer declined a grant for a while: it may have dropped requests, or have none left to make. Counting from
        nothing again would cost the next blob half a second on a long line."""
        self._delivered[peer] = depth_beyond(self._delivered.get(peer, 0)) // 2

    def grant(self, grant: Grant) -> None:
        """Count a grant that is sent."""
        self._grants.append(grant)
        self._change(self._ahead, grant.peer, 1)

    def redeem(self, peer: PeerId, root: Digest | None = None) -> Grant | None:
        """Remove and return the oldest grant of a peer (for one blob, if given): it was used or declined."""
        for grant in self._grants:
            if grant.peer == peer and root in (None, grant.root):
                self._grants.remove(grant)
                self._change(self._ahead, peer, -1)
                return grant
        return None

    def enqueue(self, upload: Upload) -> None:
        """Queue a granted request."""
        self._waiting.append(upload)
        self._change(self._ahead, upload.peer, 1)

    def cancel(self, peer: PeerId, chunk: Place) -> None:
        """Remove a waiting request. A chunk that is being sent already is not stopped."""
        upload = Upload(peer, chunk)
        if upload in self._waiting:
            self._waiting.remove(upload)
            self._change(self._ahead, peer, -1)

    def next_upload(self, is_ready: Callable[[Place], bool]) -> Upload | None:
        """Take the next request whose chunk is ready, if a slot is free. Call `began` once the shell has it.

        As many chunks are asked for as slots are free: each that is ready early is in memory until it is sent.
        """
        self.awaits_chunk = False
        free = self.pipeline - len(self._sending_deadlines)
        for upload in self._waiting:
            if free <= 0:
                break
            if self._sending.get(upload.peer, 0) < _PER_PAIR + self._beyond(upload.peer):
                if is_ready(upload.chunk):
                    self._waiting.remove(upload)
                    self._change(self._ahead, upload.peer, -1)
                    return upload
                self.awaits_chunk = True
                free -= 1
        return None

    def began(self, peer: PeerId, deadline: float) -> None:
        """The shell has a chunk for `peer`; past `deadline` its slot is free again regardless."""
        self._change(self._sending, peer, 1)
        self._sending_deadlines.append((deadline, peer))

    def done(self, peer: PeerId, *, delivered: bool = True) -> None:
        """The shell has sent a chunk to `peer`, or failed to."""
        if peer in self._stuck:
            self._change(self._stuck, peer, -1)  # its slot was freed by its deadline
        elif not self._free(peer):
            return  # its link is gone
        elif delivered:
            self._delivered[peer] = self._delivered.get(peer, 0) + 1
        if delivered:
            self._prove(peer, is_proven=True)
        else:
            self._delivered.pop(peer, None)
            self._prove(peer, is_proven=False)

    def _unproven(self) -> int:
        """Grants, requests and sends of peers that have acknowledged nothing. It is asked for every waiting peer."""
        if self._held_unproven is None:
            peers = self._ahead.keys() | self._sending.keys()
            self._held_unproven = sum(self.under_way(peer) for peer in peers - self._proven)
        return self._held_unproven

    def _change(self, counts: dict[PeerId, int], peer: PeerId, by: int) -> None:
        self._held_unproven = None
        count = counts.get(peer, 0) + by
        if count:
            counts[peer] = count
        else:
            del counts[peer]

    def _prove(self, peer: PeerId, *, is_proven: bool) -> None:
        self._held_unproven = None
        if is_proven:
            self._proven.add(peer)
        else:
            self._proven.discard(peer)

    def _beyond(self, peer: PeerId) -> int:
        return depth_beyond(self._delivered.get(peer, 0), self.share)

    def _free(self, peer: PeerId) -> bool:
        if peer not in self._sending:
            return False
        self._change(self._sending, peer, -1)
        for entry in self._sending_deadlines:
            if entry[1] == peer:
                self._sending_deadlines.remove(entry)
                break
        return True

    def remove_peer(self, peer: PeerId) -> list[Grant]:
        """Remove a peer whose link is gone; returns its grants."""
        gone = [grant for grant in self._grants if grant.peer == peer]
        self._grants = deque(grant for grant in self._grants if grant.peer != peer)
        self._waiting = deque(upload for upload in self._waiting if upload.peer != peer)
        self._sending_deadlines = deque(entry for entry in self._sending_deadlines if entry[1] != peer)
        self._ahead.pop(peer, None)
        self._sending.pop(peer, None)
        self._delivered.pop(peer, None)
        self._prove(peer, is_proven=False)
        self._stuck.pop(peer, None)
        return gone

    def expire(self, now: float) -> list[Grant]:
        """Free the slots of chunks past their deadline; remove and return the expired grants."""
        for _, peer in [entry for entry in self._sending_deadlines if entry[0] <= now]:
            self._free(peer)
            self._delivered.pop(peer, None)
            self._prove(peer, is_proven=False)
            self._change(self._stuck, peer, 1)
        expired = [grant for grant in self._grants if grant.deadline <= now]
        for grant in expired:
            self._grants.remove(grant)
            self._change(self._ahead, grant.peer, -1)
        return expired

    def deadlines(self) -> Iterator[float]:
        """Times at which `expire` is due. All grants last equally long, so the oldest expires first."""
        if self._grants:
            yield self._grants[0].deadline
        if self._sending_deadlines:
            yield min(entry[0] for entry in self._sending_deadlines)
