"""Chunk download: answer grants with requests, cancel requests that time out, finish without waste.

Nothing is requested without a grant, so a requested chunk is being sent or about to be. Requests beyond what the
downlink receives in `RelayConfig.window_s` are not made: they would delay every chunk, and overdue chunks are requested
twice. Towards the end a slow neighbor's grant is declined when its chunk would be the last to arrive.
"""

from __future__ import annotations

from collections.abc import Iterator

from p2prl.errors import RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import PeerId
from p2prl.protocol.link_messages import (
    BlobQuery,
    Chunk,
    ChunkCancel,
    ChunkRequest,
    GrantDeclined,
    Have,
    Place,
    place_of,
)
from p2prl.swarm.chunk_faults import BadChunkError
from p2prl.swarm.random_choice import draw
from p2prl.swarm.relay.chunk_sets import indices_of, of_bitmap, to_bitmap
from p2prl.swarm.relay.observed_rates import DownlinkRate
from p2prl.swarm.relay.relay_config import (
    DECLINED_S,
    DUPLICATE_SHARE,
    ENDGAME_GAIN,
    LEAST_WINDOW,
    LEAST_WINDOW_BYTES,
    REQUERY_S,
    REQUEST_TIMEOUT_S,
    SNUB_S,
    STALL_S,
)
from p2prl.swarm.relay.state import Neighbor, RelayState, Subscription, Transfer
from p2prl.swarm.relay.upload_slots import MOST_UNDER_WAY, depth_beyond, under_way_at_most

_LEAST_ASKED = 8
"""Volunteers queried for a blob at first, or as many as it has chunks: more could not each send one. All are queried
when no chunk arrives."""

_SILENT_S = 0.5
_SILENT_CHUNKS = 2.0
"""A neighbor is silent when no chunk came for this long and this many times what its chunks take so far."""


def check_have(transfer: Transfer, bitmap: bytes) -> None:
    """Refuse a bitmap longer than the blob. Raises `RemoteProtocolError`."""
    if len(bitmap) > (transfer.total + 7) // 8:
        raise RemoteProtocolError("have: bitmap longer than the blob")


class ChunkDownloads:
    """Receives grants and chunks, sends queries and requests."""

    def __init__(self, state: RelayState) -> None:
        self._state = state
        self._in_flight: dict[Place, list[PeerId]] = {}
        """Chunk → peers it was requested from, the first request first."""
        self._downlink = DownlinkRate()
        self._snubs_end: list[float] = []
        self.completed: list[Transfer] = []
        """Transfers whose last chunk has arrived, for the owner to take and clear."""

    def query(self, transfer: Transfer, now: float, *, ask_all: bool = False) -> None:
        """Ask neighbors which chunks they have: the learner and some volunteers, or all neighbors."""
        transfer.queried_at = now
        state = self._state
        for peer in state.neighbors if ask_all else self._learner_and(max(_LEAST_ASKED, transfer.total)):
            state.outbox.append((peer, BlobQuery(transfer.root)))
            if transfer.have:
                state.outbox.append((peer, Have(transfer.root, to_bitmap(transfer.have, transfer.total))))

    def on_have(self, source: PeerId, neighbor: Neighbor, root: Digest, bitmap: bytes) -> None:
        """Note the chunks a neighbor holds."""
        transfer = self._state.transfers.get(root)
        if transfer is None:
            return
        check_have(transfer, bitmap)
        before, held = neighbor.held.get(root, 0), of_bitmap(bitmap, transfer.total)
        if not neighbor.is_source:
            transfer.rarity.change(before, held)
        for other, forgotten in neighbor.note_held(root, held):
            transfers = self._state.transfers
            if not neighbor.is_source:
                transfers[other].rarity.change(forgotten, 0)
            transfers[other].interested.pop(source, None)
        if held and transfer.downloading and source not in transfer.subscriptions:
            transfer.subscriptions[source] = Subscription()
            transfer.have_changed = True

    def on_grant(self, source: PeerId, neighbor: Neighbor, root: Digest, granted: int, now: float) -> None:
        """Answer a grant, of one chunk or with −1 of any, with a request, or decline it."""
        state, transfer = self._state, self._state.transfers.get(root)
        if not -1 <= granted < limits.MAX_CHUNKS:
            raise RemoteProtocolError("grant: no chunk has this index")
        if transfer is None or not transfer.downloading:
            self._send_have(source, transfer, now)
            state.outbox.append((source, GrantDeclined(root, 0)))
            return
        offered = neighbor.held.get(root, 0) if granted < 0 else 1 << granted & transfer.all_chunks
        index = self._choose(neighbor, transfer, offered & ~transfer.have, now)
        if index is None:
            self._send_have(source, transfer, now)
            state.outbox.append((source, GrantDeclined(root, int(DECLINED_S * 1000))))
            return
        chunk = root, index
        neighbor.note_request(chunk, now, self._patience_s(neighbor, transfer))
        self._in_flight.setdefault(chunk, []).append(source)
        transfer.requested |= 1 << index
        state.outbox.append((source, ChunkRequest(root, index)))

    def on_chunk(self, source: PeerId, neighbor: Neighbor, message: Chunk, now: float) -> bool:
        """Take in a chunk; returns whether a blob gained.

        Raises `BadChunkError` when it is wrong, or was not requested from this peer.
        """
        chunk, data = place_of(message), message.data
        transfer = self._check(chunk, neighbor, message)
        request = neighbor.pending.get(chunk)
        if request is not None:
            neighbor.note_arrival(now - request.at, now)
        self._downlink.take(0 if transfer is None else transfer.ref.span(chunk[1])[1], now)
        self._release(source, neighbor, chunk)
        stats = self._state.stats
        if transfer is None or transfer.have >> chunk[1] & 1:
            stats.wasted += len(data)
            return False
        self._fill(transfer, message, now)
        for loser in self._in_flight.get(chunk, [])[:]:
            self._state.outbox.append((loser, ChunkCancel(*chunk)))
            self._release(loser, self._state.neighbors[loser], chunk)
        if neighbor.is_source:
            stats.received_from_source += len(data)
        else:
            stats.received_from_peers += len(data)
        if self._state.is_relayed(source):
            stats.received_over_circuits += len(data)
        return True

    def _check(self, chunk: Place, neighbor: Neighbor, message: Chunk) -> Transfer | None:
        """The blob that a chunk belongs to; None for one that was requested, of a blob that was dropped since."""
        transfer, index = self._state.transfers.get(chunk[0]), chunk[1]
        is_true = (
            transfer is not None
            and index < transfer.total
            and self._state.proves(transfer.ref, index, message.data, message.proof)
        )
        if chunk not in neighbor.request_history:
            # Before a restart this node may have asked for true chunks of a blob that it knows.
            neighbor.leftovers += is_true
            raise BadChunkError(
                "chunk: not requested from this peer",
                is_proof=not is_true,
                is_leftover=is_true and neighbor.leftovers <= MOST_UNDER_WAY,
            )
        if transfer is not None and not is_true:
            raise BadChunkError("chunk: its proof does not lead to the blob's hash")
        return transfer

    def _fill(self, transfer: Transfer, message: Chunk, now: float) -> None:
        self._state.store.write(transfer.ref, message.index, message.data, message.proof)
        transfer.have |= 1 << message.index
        transfer.progressed_at = now
        transfer.have_changed = True
        if transfer.complete:
            self.completed.append(transfer)

    def on_refused(self, source: PeerId, neighbor: Neighbor, chunk: Place, retry_ms: int, now: float) -> None:
        """A neighbor refused a request."""
        if chunk not in neighbor.pending:
            return
        self._release(source, neighbor, chunk)
        if retry_ms > 0:
            self._snub(neighbor, now + min(retry_ms / 1000, SNUB_S))
            return
        root, index = chunk
        held, transfer = neighbor.held.get(root, 0), self._state.transfers.get(root)
        if transfer is not None and held >> index & 1:
            neighbor.held[root] = held & ~(1 << index)
            if not neighbor.is_source:
                transfer.rarity.change(held, neighbor.held[root])

    def remove_neighbor(self, peer: PeerId, neighbor: Neighbor) -> None:
        """Cancel the requests to a neighbor whose link is gone."""
        for name in list(neighbor.pending):
            self._release(peer, neighbor, name)
        for root, held in neighbor.held.items():
            transfer = self._state.transfers.get(root)
            if transfer is not None and not neighbor.is_source:
                transfer.rarity.change(held, 0)

    def handle_timer(self, now: float) -> None:
        """Cancel requests past their deadline, and repeat queries that brought no progress."""
        config = self._state.config
        self._snubs_end = [at for at in self._snubs_end if at > now]
        overdue = [peer for peer, chunk in self._requests() if self._deadline(peer, chunk) <= now]
        for peer in dict.fromkeys(overdue):
            neighbor = self._state.neighbors[peer]
            # Chunks queued behind one that does not arrive will not arrive either.
            for chunk in list(neighbor.pending):
                self._release(peer, neighbor, chunk)
                self._state.outbox.append((peer, ChunkCancel(*chunk)))
            neighbor.strikes += 1 if neighbor.has_delivered else config.strikes
            neighbor.delivered = 0
            # Let others go first: otherwise it would be asked for the same chunks again.
            pause_s = STALL_S
            if neighbor.strikes >= config.strikes:
                neighbor.strikes, pause_s = 0, SNUB_S
            self._snub(neighbor, now + pause_s)
        for transfer in self._state.transfers.values():
            if transfer.downloading and now >= self._query_again_at(transfer):
                self.query(transfer, now, ask_all=True)

    def deadlines(self) -> Iterator[float]:
        """Times at which `handle_timer` is due."""
        for transfer in self._state.transfers.values():
            if transfer.downloading:
                yield self._query_again_at(transfer)
        for peer, chunk in self._requests():
            yield self._deadline(peer, chunk)
        yield from self._snubs_end

    # --- choices -----------------------------------------------------------------------------------------------

    def _choose(self, neighbor: Neighbor, transfer: Transfer, offered: int, now: float) -> int | None:
        state = self._state
        # What an honest peer may have granted and be sending at once.
        depth = under_way_at_most(state.config.pipeline_depth, depth_beyond(neighbor.delivered))
        if not neighbor.has_delivered and self._downlink.bytes_s:
            depth = 1  # others deliver, and this one has yet to
        if (
            not offered
            or neighbor.snubbed_until > now
            or len(neighbor.pending) >= depth
            or not self._has_window(neighbor, transfer, now)
        ):
            return None
        fresh = offered & ~transfer.requested
        if fresh:
            is_last = self._would_be_last(neighbor, transfer, now)
            return None if is_last else transfer.rarity.rarest(fresh, state.rng)
        if transfer.all_chunks & ~(transfer.have | transfer.requested):
            return None  # some chunk is still to be requested from others
        return self._endgame(neighbor, transfer, offered, now)

    def _would_be_last(self, neighbor: Neighbor, transfer: Transfer, now: float) -> bool:
        """Whether a chunk from here would arrive after all others, as fast as they come so far: then somebody else
        has the time to send it, or one of the others has to arrive first."""
        missing = (transfer.all_chunks & ~transfer.have).bit_count() * transfer.ref.chunk_bytes
        if not transfer.requested or neighbor.chunk_s * self._downlink.bytes_s <= missing:
            return False
        flying = ((peers[0], chunk) for chunk, peers in self._in_flight.items() if chunk[0] == transfer.root)
        return neighbor.chunk_s > max(self._left_s(peer, chunk, now) for peer, chunk in flying)

    def _endgame(self, neighbor: Neighbor, transfer: Transfer, offered: int, now: float) -> int | None:
        """A chunk already requested whose second copy would arrive much sooner; the latest of them."""
        # One more for the last chunk of all: nothing else is waited for.
        most = max(1, int(DUPLICATE_SHARE * transfer.total)) + (transfer.have.bit_count() + 1 == transfer.total)
        is_spent = transfer.duplicates >= most
        own_s = neighbor.chunk_s or self._mean_chunk_s()
        best, most_left_s = None, own_s / ENDGAME_GAIN
        for index in indices_of(offered & transfer.requested):
            chunk = transfer.root, index
            requested_from = self._in_flight[chunk]
            if len(requested_from) == 1 and chunk not in neighbor.pending and own_s:
                left_s = self._left_s(requested_from[0], chunk, now)
                if left_s > most_left_s and (not is_spent or self._is_silent(requested_from[0], chunk, now)):
                    best, most_left_s = index, left_s
        if best is not None:
            chunk = transfer.root, best
            transfer.duplicates += not self._is_silent(self._in_flight[chunk][0], chunk, now)
        return best

    def _is_silent(self, peer: PeerId, chunk: Place, now: float) -> bool:
        """Whether a neighbor lets a request lie: its machine may be off, which only the link's timeout shows."""
        neighbor, quiet_s = self._state.neighbors[peer], STALL_S
        if neighbor.has_delivered:
            quiet_s = _SILENT_S + _SILENT_CHUNKS * neighbor.chunk_s
        return now >= max(neighbor.pending[chunk].at, neighbor.heard_at) + quiet_s

    def _left_s(self, peer: PeerId, chunk: Place, now: float) -> float:
        """Time until a requested chunk arrives: by its sender's chunk time, or as long again as it is overdue."""
        neighbor = self._state.neighbors[peer]
        ends = neighbor.pending[chunk].at + (neighbor.chunk_s or self._mean_chunk_s())
        return max(ends - now, now - ends)

    def _learner_and(self, count: int) -> list[PeerId]:
        """The learner and `count` random volunteers."""
        neighbors = self._state.neighbors
        volunteers = [peer for peer, neighbor in neighbors.items() if not neighbor.is_source]
        sources = [peer for peer, neighbor in neighbors.items() if neighbor.is_source]
        return [*sources, *draw(volunteers, count, self._state.rng)]

    def _mean_chunk_s(self) -> float:
        paces = [n.chunk_s for n in self._state.neighbors.values() if n.chunk_s]
        return sum(paces) / len(paces) if paces else 0.0

    def _has_window(self, neighbor: Neighbor, transfer: Transfer, now: float) -> bool:
        config, chunk_bytes = self._state.config, transfer.ref.chunk_bytes
        rate = config.download_bytes_s or self._downlink.bytes_s
        chunks = (rate * config.window_s or LEAST_WINDOW_BYTES) / chunk_bytes
        if len(neighbor.pending) < config.pipeline_depth:
            # Slow senders take long for a chunk, and many of them fill a downlink. For the others it is too wide: they
            # would queue for seconds before it, and who falls silent would be noticed as much later.
            chunks = max(chunks, 2 * rate / config.least_bytes_s)
        most = max(LEAST_WINDOW, chunks)
        return len(neighbor.pending) < most and most > sum(
            self._state.neighbors[peers[0]].share_within(config.window_s)  # slow neighbors keep out no fast one
            for chunk, peers in self._in_flight.items()
            if not self._is_silent(peers[0], chunk, now)  # what neighbors let lie comes out of nobody's downlink
        )

    def _patience_s(self, neighbor: Neighbor, transfer: Transfer) -> float:
        """How long a request may wait: as its neighbor's chunks took so far, and never longer than for a chunk and
        one before it on the slowest uplink. What the neighbor claims does not matter: it could claim next to nothing,
        and send nothing."""
        config = self._state.config
        most_s = max(REQUEST_TIMEOUT_S, 2 * transfer.ref.chunk_bytes / config.least_bytes_s)
        return min(most_s, STALL_S + 3 * neighbor.chunk_s) if neighbor.delivered else most_s

    # --- bookkeeping -------------------------------------------------------------------------------------------

    def _send_have(self, peer: PeerId, transfer: Transfer | None, now: float) -> None:
        """Tell a peer which chunks this node has: its grant was useless, so its record is outdated."""
        if transfer is not None:
            self._state.show(peer, transfer, now, is_asked=False)

    def _requests(self) -> Iterator[tuple[PeerId, Place]]:
        return ((peer, chunk) for chunk, peers in self._in_flight.items() for peer in peers)

    def _deadline(self, peer: PeerId, chunk: Place) -> float:
        return self._state.neighbors[peer].deadline(chunk)

    def _query_again_at(self, transfer: Transfer) -> float:
        return max(transfer.progressed_at, transfer.queried_at) + REQUERY_S

    def _release(self, peer: PeerId, neighbor: Neighbor, chunk: Place) -> None:
        request = neighbor.pending.pop(chunk, None)
        peers = self._in_flight.get(chunk)
        if request is not None and peers is not None:
            peers.remove(peer)
            if not peers:
                del self._in_flight[chunk]
                transfer = self._state.transfers.get(chunk[0])
                if transfer is not None:
                    transfer.requested &= ~(1 << chunk[1])

    def _snub(self, neighbor: Neighbor, until: float) -> None:
        neighbor.snubbed_until = until
        self._snubs_end.append(until)
