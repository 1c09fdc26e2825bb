"""The relay's giving half: whom to grant a chunk, what the learner shows to whom, and when it has given enough.

The learner gives every chunk once before any twice, each reserved for the peer it grants, largest uplinks first and
most (super-seeding). From then on it helps only peers that the swarm would let come late, and those that get nothing
from volunteers: its uplink is one of many, and the run's other traffic needs it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import PeerId
from p2prl.protocol.link_messages import Chunk, ChunkGrant, ChunkRefused, Have
from p2prl.swarm.random_choice import draw_one
from p2prl.swarm.relay.chunk_sets import indices_of, to_bitmap
from p2prl.swarm.relay.peer_selection import Pace, Rank, pace_of, rank
from p2prl.swarm.relay.state import RelayState, Taker, Transfer, Watcher
from p2prl.swarm.relay.upload_slots import Grant, Upload, UploadSlots, pipeline_for, slots_for

_DESPERATE = 4
"""A peer without a volunteer's chunk for this many times the learner's patience is served beyond the copies."""

_SOURCE_GAIN = 1.0
"""The learner counts on one mean uplink for each peer, not on more: help that comes too late is none."""


class ChunkUploads:
    """Queries and requests in, grants, chunks and news out."""

    def __init__(self, state: RelayState) -> None:
        self._state = state
        self.queue = UploadSlots(slots_for(state.config.upload_bytes_s), state.config.pipeline_depth)
        self.open = True
        """Whether anything is given at all; closed while the month's bytes are used up."""
        self.due = False
        """Whether something changed since the last `serve`."""
        self._timer_at = math.inf

    def on_query(self, source: PeerId, root: Digest, now: float) -> None:
        """A neighbour fetches a blob and asks what is here."""
        state, transfer = self._state, self._state.transfers.get(root)
        if transfer is None:
            state.outbox.append((source, Have(root, b"")))
            return
        holder = state.neighbours[source]
        before = holder.holds.pop(root, 0)  # whoever asks may have lost its disk: it says what it has, if anything
        if not holder.is_source:
            transfer.rarity.change(before, 0)
        transfer.takers.setdefault(source, Taker(elsewhere_at=now))  # asking again is no sign of progress
        transfer.watchers[source] = Watcher()
        transfer.news = True
        transfer.announced_at = -math.inf  # a question is answered at once
        transfer.pace = None
        self.due = True

    def on_have(self, source: PeerId, root: Digest, now: float) -> None:
        """What a neighbour holds has been noted; note what that says of its needs."""
        transfer = self._state.transfers.get(root)
        taker = None if transfer is None else transfer.takers.get(source)
        if transfer is None or taker is None:
            return
        held = self._state.neighbours[source].holds[root]
        elsewhere = (held & ~taker.given).bit_count()
        if elsewhere > taker.elsewhere:
            taker.elsewhere_at = now
        taker.elsewhere = elsewhere
        if held == transfer.whole:
            del transfer.takers[source]
            if not transfer.arriving:
                transfer.watchers.pop(source, None)  # it lacks nothing, so no news of ours can be news to it
        elif transfer.have & ~held and self.queue.room > 0:
            self.due = True

    def on_request(self, source: PeerId, chunk: Digest) -> None:
        """A neighbour uses a grant, or asks without one."""
        state, held = self._state, self._state.held(chunk)
        grant = self._redeem(source, chunk)
        if held is None:
            state.outbox.append((source, ChunkRefused(chunk, 0)))
        elif grant is None or (grant.reserved and not grant.reserved >> self._index(chunk, grant.root) & 1):
            state.outbox.append((source, ChunkRefused(chunk, int(state.config.busy_retry_s * 1000))))
        else:
            self.queue.enqueue(Upload(source, chunk))
            for root, index in state.places[chunk]:
                state.transfers[root].unsent &= ~(1 << index)
        self.due = True

    def on_declined(self, source: PeerId, root: Digest, retry_ms: int, now: float) -> None:
        """A neighbour has no use for a grant: for a while, or with 0 for good."""
        grant = self.queue.redeem(source, root)
        transfer = self._state.transfers.get(root)
        if grant is None or transfer is None:
            return
        self._take_back(grant)
        if retry_ms <= 0:
            transfer.takers.pop(source, None)
        elif source in transfer.takers:
            transfer.takers[source].quiet_until = now + min(retry_ms / 1000, self._state.config.snub_s)
        self.due = True

    def on_cancel(self, source: PeerId, chunk: Digest) -> None:
        """A request is wanted no more."""
        self.queue.cancel(source, chunk)
        self.due = True

    def upload_done(self, peer: PeerId) -> None:
        """The shell has handed over a chunk, or failed to."""
        self.queue.done(peer)
        self.due = True

    def gained(self) -> None:
        """A chunk has come that somebody may lack."""
        if self.queue.room > 0:
            self.due = True

    def forget(self, peer: PeerId) -> None:
        """The link is gone."""
        for grant in self.queue.forget(peer):
            self._take_back(grant)
        for transfer in self._state.transfers.values():
            transfer.watchers.pop(peer, None)
            transfer.takers.pop(peer, None)
        self.due = True

    def handle_timer(self, now: float) -> None:
        """Take back what nobody used."""
        for grant in self.queue.expire(now):
            self._take_back(grant)
            transfer = self._state.transfers.get(grant.root)
            if transfer is not None and grant.peer in transfer.takers:
                transfer.takers[grant.peer].quiet_until = now + self._state.config.stall_s
        self.due = True

    def deadlines(self) -> Iterator[float]:
        """When `handle_timer` has something to do."""
        yield from self.queue.deadlines()
        if not math.isinf(self._timer_at):
            yield self._timer_at
        for transfer in self._state.transfers.values():
            if transfer.news:
                yield transfer.announced_at + self._state.config.announce_s

    # --- giving ------------------------------------------------------------------------------------------------

    def serve(self, now: float) -> bool:
        """Send what may go, and grant while there is room and somebody to grant to. Returns whether it was due."""
        if not self.due:
            return False
        self.due = False
        served = [transfer.ref.chunk_bytes for transfer in self._state.transfers.values() if transfer.takers]
        self.queue.pipeline = pipeline_for(self._state.config.upload_bytes_s, max(served, default=0))
        while (upload := self.queue.next_upload()) is not None:
            self._send(upload, now)
        self._timer_at = math.inf
        while self.open and self.queue.room > 0:
            best = min(self._candidates(now), default=None)
            if best is None:
                break
            _, _, peer, root = best
            self._grant(peer, self._state.transfers[root], now)
        return True

    def tell(self, now: float) -> bool:
        """News of chunks, once per `announce_s` rather than once per chunk. Returns whether some was due."""
        config = self._state.config
        due = False
        for root, transfer in self._state.transfers.items():
            if not transfer.news or now < transfer.announced_at + config.announce_s:
                continue
            due = True
            transfer.announced_at, transfer.news = now, False
            frame: Have | None = None
            finished = []
            for peer, watcher in transfer.watchers.items():
                if watcher.told == transfer.have and watcher.told_at > -math.inf:
                    continue
                holds = self._state.neighbours[peer].holds.get(root, 0)
                fresh = transfer.have & ~watcher.told & ~holds
                asked = watcher.told_at == -math.inf
                if fresh or asked or transfer.complete or now >= watcher.told_at + config.progress_s:
                    frame = frame or Have(root, to_bitmap(transfer.have, transfer.total))
                    self._state.outbox.append((peer, frame))
                    watcher.told, watcher.told_at = transfer.have, now
                    if transfer.complete and peer not in transfer.takers:
                        finished.append(peer)
                else:
                    transfer.news = True  # progress it will hear of later
            for peer in finished:
                del transfer.watchers[peer]
        return due

    def _candidates(self, now: float) -> Iterator[tuple[Rank, float, PeerId, Digest]]:
        """Everybody who may be granted a chunk, with its place in the order."""
        state, queue = self._state, self.queue
        for root, transfer in state.transfers.items():
            if not transfer.takers or not transfer.have:
                continue
            pace = transfer.pace or self._pace(transfer)
            for peer, taker in transfer.takers.items():
                holder = state.neighbours[peer]
                held = holder.holds.get(root, 0)
                lacks = transfer.have & ~held
                if not lacks or not queue.may_grant(peer):
                    continue
                if taker.quiet_until > now:
                    self._timer_at = min(self._timer_at, taker.quiet_until)
                    continue
                coming = queue.under_way(peer)
                if lacks.bit_count() <= coming:
                    continue
                if transfer.origin:
                    place = self._source_rank(peer, taker, transfer, pace, now)
                    if place is None:
                        continue
                else:
                    missing = transfer.missing_bytes(held)
                    place = rank(held.bit_count() + coming, missing, holder.rates, pace, now - transfer.began_at)
                yield place, state.rng.random(), peer, root

    def _source_rank(self, peer: PeerId, taker: Taker, transfer: Transfer, pace: Pace, now: float) -> Rank | None:
        """A peer's place with the learner; None when volunteers look after it, or all was given once and enough."""
        holder, config = self._state.neighbours[peer], self._state.config
        held = holder.holds.get(transfer.root, 0)
        if transfer.unsent & ~held:
            given = taker.given.bit_count() + self.queue.under_way(peer)
            return 0, (given + 1) / (holder.rates.upload_bytes_s or 1.0)
        missing = transfer.missing_bytes(held)
        spent = transfer.chunks_sent >= config.source_copies * transfer.total
        laxity_s = pace.laxity_s(missing, holder.rates, now - transfer.began_at, gain=_SOURCE_GAIN)
        if not spent and pace.is_late(laxity_s):
            return 1, laxity_s
        patience_s = config.source_patience_s * (_DESPERATE if spent else 1)
        alone_at = taker.elsewhere_at + patience_s
        if now < alone_at:
            self._timer_at = min(self._timer_at, alone_at)
            return None
        return 2, float(missing)

    def _grant(self, peer: PeerId, transfer: Transfer, now: float) -> None:
        reserved = 0
        if transfer.origin:
            free = transfer.unsent & ~self._state.neighbours[peer].holds.get(transfer.root, 0)
            if free:
                reserved = 1 << draw_one(list(indices_of(free)), self._state.rng)
                transfer.unsent &= ~reserved
        self.queue.grant(Grant(peer, transfer.root, reserved, now + self._state.config.grant_s))
        bitmap = to_bitmap(reserved, transfer.total) if reserved else b""
        self._state.outbox.append((peer, ChunkGrant(transfer.root, bitmap)))

    def _send(self, upload: Upload, now: float) -> None:
        state, held = self._state, self._state.held(upload.chunk)
        if held is None:  # dropped meanwhile
            state.outbox.append((upload.peer, ChunkRefused(upload.chunk, 0)))
            return
        transfer, index = held
        data = state.store.read(transfer.ref, index)
        state.stats.sent += len(data)
        transfer.chunks_sent += 1
        if upload.peer in transfer.takers:
            transfer.takers[upload.peer].given |= 1 << index
        rate = state.config.upload_bytes_s
        turn_s = (
            2 * (self.queue.slots + 1) * transfer.ref.chunk_bytes / rate if rate else state.config.request_timeout_s
        )
        self.queue.began(upload.peer, now + state.config.stall_s + turn_s)
        state.outbox.append((upload.peer, Chunk(data)))

    def _pace(self, transfer: Transfer) -> Pace:
        state = self._state
        volunteers = [n.rates for n in state.neighbours.values() if not n.is_source]
        own = state.config.upload_bytes_s if transfer.origin else 0.0
        transfer.pace = pace_of(transfer.ref.size_bytes, volunteers, source_upload_bytes_s=own)
        return transfer.pace

    def _redeem(self, peer: PeerId, chunk: Digest) -> Grant | None:
        """The grant that covers a request: one of a blob the chunk belongs to."""
        for root, _ in self._state.places.get(chunk, ()):
            grant = self.queue.redeem(peer, root)
            if grant is not None:
                self._take_back(grant)
                return grant
        return None

    def _take_back(self, grant: Grant) -> None:
        transfer = self._state.transfers.get(grant.root)
        if transfer is not None:
            transfer.unsent |= grant.reserved

    def _index(self, chunk: Digest, root: Digest) -> int:
        return next(index for where, index in self._state.places[chunk] if where == root)
