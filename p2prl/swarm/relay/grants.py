"""Chunk upload: which peer to grant a chunk, and super-seeding by the learner.

The learner sends every chunk once before any twice, each reserved for the peer it is granted to; public peers come
first (`leaders`), and who passed on what it got is next (super-seeding). After that it helps only peers that the
swarm would serve late, those that get nothing from volunteers, and a weak swarm by its share of all uplinks: the run's
other traffic needs the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import PeerId
from p2prl.protocol.link_messages import ChunkGrant, ChunkRefused, Have, Place
from p2prl.swarm.relay.chunk_sets import draw_index, indices_of
from p2prl.swarm.relay.grant_order import Rank, rank
from p2prl.swarm.relay.leaders import FirstCopy
from p2prl.swarm.relay.learner_grant_order import SourceOrder, count_gains
from p2prl.swarm.relay.relay_config import BUSY_RETRY_S, GRANT_S, PROGRESS_S, REQUEST_TIMEOUT_S, SNUB_S, STALL_S
from p2prl.swarm.relay.send_reports import SendReports
from p2prl.swarm.relay.state import Interest, RelayState, Subscription, Transfer
from p2prl.swarm.relay.upload_slots import (
    Grant,
    Upload,
    UploadSlots,
    ahead_for,
    in_flight,
    pipeline_for,
    slots_for,
    under_way_at_most,
)

_ANNOUNCED_CHUNKS = 4_096
"""Chunks that an announcement names at the usual interval; of a blob with more, at an interval as much longer."""

_IDLE_S = 0.05
"""After a search for somebody to serve found nobody, announcements start no other one for this long."""


class ChunkUploads:
    """Receives queries and requests, sends grants, chunks and `Have` messages."""

    def __init__(self, state: RelayState) -> None:
        self._state = state
        self.queue = UploadSlots(slots_for(state.config.upload_bytes_s), state.config.pipeline_depth)
        self.open = True
        """Whether anything is granted; False while the month's upload budget is used up."""
        self.due = False
        """Whether something changed since the last `serve`."""
        self._timer_at = math.inf
        self._circuits_free_at = -math.inf
        """When the next chunk may pass a circuit."""
        self._idle_until = -math.inf
        """Nobody could be granted anything a moment ago, and announcements alone do not change that so soon."""
        self._reports = SendReports(state, self.queue)
        self._order = SourceOrder(state, self.queue)

    def on_query(self, source: PeerId, root: Digest, now: float) -> None:
        """A neighbor downloads a blob and asks which chunks this node holds."""
        state, transfer = self._state, self._state.transfers.get(root)
        if transfer is None:
            state.outbox.append((source, Have(root, b"")))
            return
        neighbor = state.neighbors[source]
        before = neighbor.held.pop(root, 0)  # it may have lost its disk; it sends a `Have` if it holds anything
        if not neighbor.is_source:
            transfer.rarity.change(before, 0)
        if source not in transfer.interested:  # asking again is no progress
            transfer.interested[source] = Interest(from_others_at=now, began_at=now)
            transfer.gains.begin(now)
            transfer.pace = None
            for copy in transfer.first_copies.values():
                copy.moved_at = now  # until now there may have been nobody to pass it on to
        transfer.subscriptions[source] = Subscription()
        transfer.have_changed = True
        transfer.announced_at = -math.inf  # a query is answered at once
        self.due = True

    def on_have(self, source: PeerId, root: Digest, now: float) -> None:
        """Update a neighbor's interest; the download half has noted what it holds."""
        transfer = self._state.transfers.get(root)
        interest = None if transfer is None else transfer.interested.get(source)
        if transfer is None or interest is None:
            return
        held = self._state.neighbors[source].held[root]
        foreign = held & ~interest.uploaded
        for index in indices_of(foreign & ~interest.foreign) if transfer.origin else ():
            holder = transfer.first_holders.get(index, source)
            if holder != source and holder in transfer.first_copies:
                transfer.first_copies[holder].see(1 << index, now)
        interest.foreign = foreign
        from_others = foreign.bit_count()
        if from_others > interest.from_others:
            interest.from_others_at = now
        count_gains(transfer, interest, held.bit_count(), from_others, now)
        if held == transfer.all_chunks:
            del transfer.interested[source]
            transfer.completed_at = min(transfer.completed_at, now)
            if not transfer.downloading:
                transfer.subscriptions.pop(source, None)  # it lacks nothing, so none of our chunks can be new to it
        elif transfer.have & ~held and self.queue.room > 0:
            if now >= self._idle_until:
                self.due = True
            else:
                self._timer_at = min(self._timer_at, self._idle_until)

    def on_request(self, source: PeerId, chunk: Place, now: float) -> None:
        """A neighbor uses a grant, or requests a chunk without one."""
        state, transfer, (root, index) = self._state, self._state.holder(chunk), chunk
        grant = self._redeem(source, root)
        if transfer is None:
            state.outbox.append((source, ChunkRefused(root, index, 0)))
        elif grant is None or (grant.reserved and not grant.reserved >> index & 1):
            state.outbox.append((source, ChunkRefused(root, index, int(BUSY_RETRY_S * 1000))))
        else:
            self.queue.enqueue(Upload(source, chunk))
            if transfer.unsent >> index & 1:
                transfer.first_holders[index] = source
                transfer.first_copies.setdefault(source, FirstCopy()).hand(1 << index, now)
            transfer.unsent &= ~(1 << index)
        self.due = True

    def on_declined(self, source: PeerId, root: Digest, retry_ms: int, now: float) -> None:
        """A neighbor declined a grant: for a while, or with 0 for good."""
        grant = self.queue.redeem(source, root)
        transfer = self._state.transfers.get(root)
        if grant is None or transfer is None:
            return
        self._release(grant)
        if retry_ms <= 0:
            transfer.interested.pop(source, None)
        else:
            self.queue.declined(source)
            if source in transfer.interested:
                transfer.interested[source].pause(now + min(retry_ms / 1000, SNUB_S))
        self.due = True

    def on_cancel(self, source: PeerId, chunk: Place) -> None:
        """A neighbor cancelled a request."""
        self.queue.cancel(source, chunk)
        self.due = True

    def upload_done(self, peer: PeerId, *, delivered: bool) -> None:
        """The shell has sent a chunk, or failed to."""
        self._reports.ended(peer, delivered=delivered)
        self.due = True

    def on_chunk_gained(self) -> None:
        """A chunk has arrived that some neighbor may lack."""
        if self.queue.room > 0:
            self.due = True

    def remove_neighbor(self, peer: PeerId) -> None:
        """Drop the grants and interests of a neighbor whose link is gone."""
        for grant in self.queue.remove_peer(peer):
            self._release(grant)
        for transfer in self._state.transfers.values():
            transfer.subscriptions.pop(peer, None)
            transfer.interested.pop(peer, None)
            transfer.first_copies.pop(peer, None)
        self.due = True

    def handle_timer(self, now: float) -> None:
        """Take back grants that expired."""
        self._reports.settle(now)
        for grant in self.queue.expire(now):
            self._release(grant)
            transfer = self._state.transfers.get(grant.root)
            if transfer is not None and grant.peer in transfer.interested:
                transfer.interested[grant.peer].pause(now + STALL_S)
        self.due = True

    def deadlines(self) -> Iterator[float]:
        """Times at which `handle_timer` is due."""
        yield from self.queue.deadlines()
        if not math.isinf(self._timer_at):
            yield self._timer_at
        for transfer in self._state.transfers.values():
            if transfer.have_changed:
                yield self._announced_again_at(transfer)

    def serve(self, now: float) -> bool:
        """Send requested chunks, and grant while slots and interested peers remain. Returns whether it was due."""
        if not self.due and not self.queue.awaits_chunk:
            return False
        self.due = False
        self._reports.settle(now)
        served = [transfer.ref.chunk_bytes for transfer in self._state.transfers.values() if transfer.interested]
        rate, chunk_bytes = self._state.upload_bytes_s, max(served, default=0)
        self.queue.slots = slots_for(rate)
        self.queue.pipeline, self.queue.ahead = pipeline_for(rate, chunk_bytes), ahead_for(rate, chunk_bytes)
        receivers = {peer for transfer in self._state.transfers.values() for peer in transfer.interested}
        # Second copies from here only help out: there the learner keeps to the usual depth, unless a weak swarm needs
        # its uplink, and those who are left cannot fill it like that.
        self._order.begin()
        are_few = len(receivers) * under_way_at_most(self._state.config.pipeline_depth, 0) < self.queue.pipeline
        self.queue.grants_beyond = any(
            not transfer.origin or transfer.unsent or (are_few and self._order.is_behind(transfer, now))
            for transfer in self._state.transfers.values()
        )
        self.queue.share = in_flight(rate, chunk_bytes) // max(1, len(receivers))
        while (upload := self.queue.next_upload(self._state.is_ready)) is not None:
            self._send(upload, now)
        self._timer_at = math.inf
        while self.open and self.queue.room > 0:
            best = min(self._candidates(now), default=None)
            if best is None:
                self._idle_until = now + _IDLE_S
                break
            _, _, peer, root = best
            self._grant(peer, self._state.transfers[root], now)
        return True

    def announce(self, now: float) -> bool:
        """Send `Have` messages, at intervals rather than once per chunk. Returns whether some were due."""
        due = False
        for root, transfer in self._state.transfers.items():
            if not transfer.have_changed or now < self._announced_again_at(transfer):
                continue
            due = True
            transfer.announced_at, transfer.have_changed = now, False
            finished = []
            for peer, subscription in transfer.subscriptions.items():
                if subscription.sent == transfer.have and subscription.sent_at > -math.inf:
                    continue
                held = self._state.neighbors[peer].held.get(root, 0)
                fresh = transfer.have & ~subscription.sent & ~held
                unanswered = subscription.sent_at == -math.inf
                is_due = fresh or unanswered or transfer.complete or now >= subscription.sent_at + PROGRESS_S
                if is_due and self._state.show(peer, transfer, now):
                    subscription.sent, subscription.sent_at = transfer.have, now
                    if transfer.complete and peer not in transfer.interested:
                        finished.append(peer)
                else:
                    transfer.have_changed = True  # it is sent later
            for peer in finished:
                del transfer.subscriptions[peer]
        return due

    def _announced_again_at(self, transfer: Transfer) -> float:
        """Large blobs less often, since an announcement grows with the blob: 512 bytes for each `announce_s`."""
        return transfer.announced_at + self._state.config.announce_s * max(1.0, transfer.total / _ANNOUNCED_CHUNKS)

    def _candidates(self, now: float) -> Iterator[tuple[tuple[int, Rank], float, PeerId, Digest]]:
        """Peers that may be granted a chunk, with their class and rank; ties at random."""
        state, queue = self._state, self.queue
        for root, transfer in state.transfers.items():
            if not transfer.interested or not transfer.have:
                continue
            for peer, interest in transfer.interested.items():
                neighbor = state.neighbors[peer]
                held = neighbor.held.get(root, 0)
                lacks = transfer.have & ~held
                if not lacks or not queue.may_grant(peer) or (queue.is_stuck(peer) and len(transfer.interested) > 1):
                    continue
                if interest.paused_until > now:
                    self._timer_at = min(self._timer_at, interest.paused_until)
                    continue
                if state.is_relayed(peer):
                    alone_at = interest.from_others_at + state.config.circuit_patience_s
                    if not transfer.origin:
                        alone_at = max(alone_at, self._circuits_free_at)
                    if now < alone_at:
                        self._timer_at = min(self._timer_at, alone_at)
                        continue
                coming = queue.under_way(peer)
                if lacks.bit_count() <= coming:
                    continue
                if transfer.origin:
                    place, due_at = self._order.rank(peer, interest, transfer, now)
                    if place is None:
                        self._timer_at = min(self._timer_at, due_at)
                        continue
                else:
                    place = 0, rank(interest.chunks(held) + coming, neighbor.rates)
                yield place, state.rng.random(), peer, root

    def _grant(self, peer: PeerId, transfer: Transfer, now: float) -> None:
        index = -1
        if transfer.origin:
            free = transfer.unsent & ~self._state.neighbors[peer].held.get(transfer.root, 0)
            index = draw_index(free, self._state.rng) if free else -1
        if index < 0 and not self._show(peer, transfer, now):
            transfer.interested[peer].pause(now + BUSY_RETRY_S)
            return
        if self._state.is_relayed(peer) and not transfer.origin:
            chunk_s = transfer.ref.chunk_bytes / self._state.config.circuit_bytes_s
            self._circuits_free_at = max(now, self._circuits_free_at) + chunk_s
        reserved = 1 << index if index >= 0 else 0
        transfer.unsent &= ~reserved
        self.queue.grant(Grant(peer, transfer.root, reserved, now + GRANT_S))
        self._state.outbox.append((peer, ChunkGrant(transfer.root, index)))

    def _show(self, peer: PeerId, transfer: Transfer, now: float) -> bool:
        """Announce chunks before the grant for them: a peer that knows of none it lacks would decline. False when it
        knows of none, and may not be told of any now."""
        subscription = transfer.subscriptions.get(peer)
        known = subscription.sent if subscription is not None and subscription.sent_at > -math.inf else 0
        if known & ~self._state.neighbors[peer].held.get(transfer.root, 0):
            return True
        if not self._state.show(peer, transfer, now):
            return False
        if subscription is not None:
            subscription.sent, subscription.sent_at = transfer.have, now
        return True

    def _send(self, upload: Upload, now: float) -> None:
        state, (root, index) = self._state, upload.chunk
        message = state.read(upload.chunk)
        if message is None:  # dropped meanwhile
            state.outbox.append((upload.peer, ChunkRefused(root, index, 0)))
            return
        transfer = state.transfers[root]
        state.stats.sent += len(message.data)
        transfer.chunks_sent += 1
        if upload.peer in transfer.interested:
            transfer.interested[upload.peer].note_sent(index)
        rate, chunk_bytes = state.upload_bytes_s, transfer.ref.chunk_bytes
        # A slow receiver takes its time for a chunk that has left the uplink long ago.
        turn_s = max(2 * chunk_bytes / state.config.least_bytes_s, REQUEST_TIMEOUT_S)
        if rate:
            turn_s = min(turn_s, max(2 * (self.queue.pipeline + 1) * chunk_bytes / rate, STALL_S))
        self._reports.began(upload.peer, chunk_bytes, now + STALL_S + turn_s, now)
        state.outbox.append((upload.peer, message))

    def _redeem(self, peer: PeerId, root: Digest) -> Grant | None:
        """The grant that covers a request."""
        grant = self.queue.redeem(peer, root)
        if grant is not None:
            self._release(grant)
        return grant

    def _release(self, grant: Grant) -> None:
        transfer = self._state.transfers.get(grant.root)
        if transfer is not None:
            transfer.unsent |= grant.reserved
