"""The relay's taking half: answer a grant with the rarest chunk, take back what does not come, end without waste.

Nothing is asked without a grant, so a chunk under way is being sent or about to be. What the downlink cannot take in
a second is not asked for at all: it would only make every chunk late, and late chunks are asked for twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from p2prl.errors import RemoteProtocolError
from p2prl.protocol.digests import Digest, chunk_digest
from p2prl.protocol.identity import PeerId
from p2prl.protocol.link_messages import BlobQuery, ChunkCancel, ChunkRequest, GrantDeclined, Have
from p2prl.swarm.random_choice import draw
from p2prl.swarm.relay.chunk_sets import indices_of, of_bitmap, to_bitmap
from p2prl.swarm.relay.state import Asked, Holder, RelayState, Transfer, Watcher
from p2prl.swarm.relay.upload_slots import slots_for

_LEAST_ASKED = 8
"""Volunteers asked for a blob at first, or as many as it has chunks: more could not each give one. All are asked when
nothing comes."""

_MEASURE_S = 2.0
"""Window over which the downlink's rate is measured when nobody said it."""


class ForeignChunkError(RemoteProtocolError):
    """A chunk that was never asked of its sender: wrong bytes, whose hash is the proof."""


class ChunkDownloads:
    """Grants in, requests out, chunks in."""

    def __init__(self, state: RelayState) -> None:
        self._state = state
        self._in_flight: dict[Digest, list[PeerId]] = {}
        """Chunk → who was asked, the first request first."""
        self._window_from = -math.inf
        self._window_bytes = 0
        self._rate_bytes_s = 0.0
        self._snubs_end: list[float] = []
        self.whole: list[Transfer] = []
        """Transfers whose last chunk has come, for the owner to take away."""

    def query(self, transfer: Transfer, now: float, *, everybody: bool = False) -> None:
        """Ask neighbours what they hold: the learner and some volunteers, or all."""
        transfer.queried_at = now
        state = self._state
        for peer in state.neighbours if everybody else self._some(max(_LEAST_ASKED, transfer.total)):
            state.outbox.append((peer, BlobQuery(transfer.root)))
            if transfer.have:
                state.outbox.append((peer, Have(transfer.root, to_bitmap(transfer.have, transfer.total))))

    def on_have(self, source: PeerId, neighbour: Holder, root: Digest, bitmap: bytes) -> None:
        """A neighbour says what it holds."""
        transfer = self._state.transfers.get(root)
        if transfer is None:
            return
        if len(bitmap) > (transfer.total + 7) // 8:
            raise RemoteProtocolError("have: bitmap longer than the blob")
        before, held = neighbour.holds.get(root, 0), of_bitmap(bitmap, transfer.total)
        neighbour.holds[root] = held
        if not neighbour.is_source:
            transfer.rarity.change(before, held)
        if held and transfer.arriving and source not in transfer.watchers:
            transfer.watchers[source] = Watcher()
            transfer.news = True

    def on_grant(self, source: PeerId, neighbour: Holder, root: Digest, bitmap: bytes, now: float) -> None:
        """Answer a grant: a request, or no."""
        state, transfer = self._state, self._state.transfers.get(root)
        if transfer is None or not transfer.arriving:
            self._say_what_is_here(source, transfer)
            state.outbox.append((source, GrantDeclined(root, 0)))
            return
        offered = of_bitmap(bitmap, transfer.total) or neighbour.holds.get(root, 0)
        index = self._choose(neighbour, transfer, offered & ~transfer.have, now)
        if index is None:
            self._say_what_is_here(source, transfer)
            state.outbox.append((source, GrantDeclined(root, int(state.config.declined_s * 1000))))
            return
        name = Digest(transfer.ref.chunks[index])
        neighbour.note_request(name, now, now + self._patience_s(neighbour, transfer))
        self._in_flight.setdefault(name, []).append(source)
        self._mark(name, flying=True)
        state.outbox.append((source, ChunkRequest(name)))

    def on_chunk(self, source: PeerId, neighbour: Holder, data: bytes, now: float) -> list[Transfer]:
        """Take a chunk in; the transfers that gained. Raises `ForeignChunkError` when nobody asked for these bytes."""
        name = chunk_digest(data)
        if name not in neighbour.ever_asked:
            raise ForeignChunkError("chunk: bytes that hash to nothing we asked this peer for")
        asked = neighbour.asked.get(name)
        if asked is not None:
            neighbour.note_arrival(now - asked.at)
        self._measure(len(data), now)
        self._release(source, neighbour, name)
        stats = self._state.stats
        filled = self.fill(name, data, now)
        if not filled:
            stats.wasted += len(data)
            return filled
        for loser in self._in_flight.get(name, [])[:]:
            self._state.outbox.append((loser, ChunkCancel(name)))
            self._release(loser, self._state.neighbours[loser], name)
        if neighbour.is_source:
            stats.received_from_source += len(data)
        else:
            stats.received_from_peers += len(data)
        return filled

    def fill(self, chunk: Digest, data: bytes, now: float) -> list[Transfer]:
        """Write the chunk wherever it belongs and is missing; the transfers that gained."""
        filled: dict[Digest, Transfer] = {}
        for root, index in self._state.places.get(chunk, ()):
            transfer = self._state.transfers[root]
            if not transfer.have >> index & 1:
                self._state.store.write(transfer.ref, index, data)
                transfer.have |= 1 << index
                transfer.progressed_at = now
                transfer.news = True
                filled[root] = transfer
                if transfer.complete:
                    self.whole.append(transfer)
        return list(filled.values())

    def on_refused(self, source: PeerId, neighbour: Holder, chunk: Digest, retry_ms: int, now: float) -> None:
        """A request came to nothing."""
        if chunk not in neighbour.asked:
            return
        self._release(source, neighbour, chunk)
        if retry_ms > 0:
            self._snub(neighbour, now + min(retry_ms / 1000, self._state.config.snub_s))
            return
        for root, index in self._state.places.get(chunk, ()):
            held = neighbour.holds.get(root, 0)
            if held >> index & 1:
                neighbour.holds[root] = held & ~(1 << index)
                if not neighbour.is_source:
                    self._state.transfers[root].rarity.change(held, neighbour.holds[root])

    def forget(self, peer: PeerId, neighbour: Holder) -> None:
        """The link is gone: take its requests back."""
        for name in list(neighbour.asked):
            self._release(peer, neighbour, name)
        for root, held in neighbour.holds.items():
            transfer = self._state.transfers.get(root)
            if transfer is not None and not neighbour.is_source:
                transfer.rarity.change(held, 0)

    def handle_timer(self, now: float) -> None:
        """Take back requests past their deadline, and ask again what was lost."""
        config = self._state.config
        self._snubs_end = [at for at in self._snubs_end if at > now]
        late = [peer for peer, chunk in self._requests() if self._deadline(peer, chunk) <= now]
        for peer in dict.fromkeys(late):
            neighbour = self._state.neighbours[peer]
            # What waits behind a chunk that does not come will not come either.
            for chunk in list(neighbour.asked):
                self._release(peer, neighbour, chunk)
                self._state.outbox.append((peer, ChunkCancel(chunk)))
            neighbour.strikes += 1
            # Others first: it would be given the very same chunks again.
            pause_s = config.stall_s
            if neighbour.strikes >= config.strikes:
                neighbour.strikes, pause_s = 0, config.snub_s
            self._snub(neighbour, now + pause_s)
        for transfer in self._state.transfers.values():
            if transfer.arriving and now >= self._query_again_at(transfer):
                self.query(transfer, now, everybody=True)

    def deadlines(self) -> Iterator[float]:
        """When `handle_timer` has something to do."""
        for transfer in self._state.transfers.values():
            if transfer.arriving:
                yield self._query_again_at(transfer)
        for peer, chunk in self._requests():
            yield self._deadline(peer, chunk)
        yield from self._snubs_end

    # --- choices -----------------------------------------------------------------------------------------------

    def _choose(self, neighbour: Holder, transfer: Transfer, offered: int, now: float) -> int | None:
        state = self._state
        depth = state.config.pipeline_depth + 2  # what an honest granter may have given out at once
        if (
            not offered
            or neighbour.snubbed_until > now
            or len(neighbour.asked) >= depth
            or not self._has_window(transfer)
        ):
            return None
        fresh = offered & ~transfer.flying
        if fresh:
            return transfer.rarity.rarest(fresh, state.rng)
        if transfer.whole & ~(transfer.have | transfer.flying):
            return None  # something is still to be asked of others
        return self._endgame(neighbour, transfer, offered, now)

    def _endgame(self, neighbour: Holder, transfer: Transfer, offered: int, now: float) -> int | None:
        """A chunk already under way whose second copy would come much sooner; the latest of them."""
        config = self._state.config
        if transfer.duplicates >= max(1, int(config.duplicate_share * transfer.total)):
            return None
        own_s = neighbour.chunk_s or self._mean_chunk_s()
        best, most_left_s = None, own_s / config.endgame_gain
        for index in indices_of(offered & transfer.flying):
            name = Digest(transfer.ref.chunks[index])
            asked_of = self._in_flight[name]
            if len(asked_of) == 1 and name not in neighbour.asked and own_s:
                left_s = self._left_s(asked_of[0], name, now)
                if left_s > most_left_s:
                    best, most_left_s = index, left_s
        if best is not None:
            transfer.duplicates += 1
        return best

    def _left_s(self, peer: PeerId, chunk: Digest, now: float) -> float:
        """How long a chunk under way will still take: by its sender's pace, or as long again as it is overdue."""
        neighbour = self._state.neighbours[peer]
        ends = neighbour.asked[chunk].at + (neighbour.chunk_s or self._mean_chunk_s())
        return max(ends - now, now - ends)

    def _some(self, count: int) -> list[PeerId]:
        """The learner, and `count` volunteers at random."""
        neighbours = self._state.neighbours
        volunteers = [peer for peer, holder in neighbours.items() if not holder.is_source]
        sources = [peer for peer, holder in neighbours.items() if holder.is_source]
        return [*sources, *draw(volunteers, count, self._state.rng)]

    def _mean_chunk_s(self) -> float:
        paces = [n.chunk_s for n in self._state.neighbours.values() if n.chunk_s]
        return sum(paces) / len(paces) if paces else 0.0

    def _has_window(self, transfer: Transfer) -> bool:
        config = self._state.config
        rate = config.download_bytes_s or 2 * self._rate_bytes_s
        most = max(config.least_window, rate * config.window_s / transfer.ref.chunk_bytes)
        return len(self._in_flight) < most

    def _patience_s(self, neighbour: Holder, transfer: Transfer) -> float:
        """How long a request may stay unanswered: its turn in a full queue at both ends, twice over, and a stall."""
        config, rates = self._state.config, neighbour.rates
        if not rates.upload_bytes_s:
            return max(config.request_timeout_s, config.stall_s + 3 * neighbour.chunk_s)
        chunk = transfer.ref.chunk_bytes
        turn_s = 2 * (slots_for(rates.upload_bytes_s) + 1) * chunk / rates.upload_bytes_s
        down = config.download_bytes_s or self._rate_bytes_s
        if down:
            turn_s += 2 * (1 + len(self._in_flight)) * chunk / down
        return config.stall_s + max(turn_s, 3 * neighbour.chunk_s)

    def _measure(self, size: int, now: float) -> None:
        if now - self._window_from >= _MEASURE_S:
            span = now - self._window_from
            self._rate_bytes_s = self._window_bytes / span if span < 2 * _MEASURE_S else 0.0
            self._window_from, self._window_bytes = now, 0
        self._window_bytes += size

    # --- bookkeeping -------------------------------------------------------------------------------------------

    def _say_what_is_here(self, peer: PeerId, transfer: Transfer | None) -> None:
        """Whoever grants in vain has an old picture of us."""
        if transfer is not None:
            self._state.outbox.append((peer, Have(transfer.root, to_bitmap(transfer.have, transfer.total))))

    def _requests(self) -> Iterator[tuple[PeerId, Digest]]:
        return ((peer, chunk) for chunk, peers in self._in_flight.items() for peer in peers)

    def _deadline(self, peer: PeerId, chunk: Digest) -> float:
        return self._state.neighbours[peer].asked[chunk].deadline

    def _query_again_at(self, transfer: Transfer) -> float:
        return max(transfer.progressed_at, transfer.queried_at) + self._state.config.requery_s

    def _release(self, peer: PeerId, neighbour: Holder, chunk: Digest) -> Asked | None:
        asked = neighbour.asked.pop(chunk, None)
        peers = self._in_flight.get(chunk)
        if asked is not None and peers is not None:
            peers.remove(peer)
            if not peers:
                del self._in_flight[chunk]
                self._mark(chunk, flying=False)
        return asked

    def _mark(self, chunk: Digest, *, flying: bool) -> None:
        for root, index in self._state.places.get(chunk, ()):
            transfer = self._state.transfers[root]
            transfer.flying = transfer.flying | 1 << index if flying else transfer.flying & ~(1 << index)

    def _snub(self, neighbour: Holder, until: float) -> None:
        neighbour.snubbed_until = until
        self._snubs_end.append(until)
