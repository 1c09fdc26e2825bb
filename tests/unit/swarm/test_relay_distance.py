"""A blob over one long line between two relays, on virtual time: how much of the line is used."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from itertools import count

import pytest

from p2prl.protocol.identity import PeerId
from p2prl.protocol.link_messages import Chunk
from p2prl.protocol.manifests import blob_of
from p2prl.protocol.wire_codec import Wire
from p2prl.swarm.relay.chunk_relay import Relay
from p2prl.swarm.relay.relay_config import RelayConfig
from p2prl_lab.sim.memory_blobs import MemoryBlobs
from tests.unit.swarm.relays import SOURCE, A

SIZE = 8_000_000
RATE = 2.5e6
CHUNK = 65_536


class LongLine:
    """A learner that offers blobs and one peer that fetches them. Chunks leave one after the other at `RATE`."""

    def __init__(self, round_trip_s: float) -> None:
        self._one_way_s = round_trip_s / 2
        self._free_at = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self.now = 0.0
        self._stores = {name: MemoryBlobs() for name in (SOURCE, A)}
        self._relays = {
            name: Relay(self._stores[name], random.Random(str(name)), RelayConfig()) for name in (SOURCE, A)
        }
        self._relays[SOURCE].add_neighbor(A, is_source=False)
        self._relays[A].add_neighbor(SOURCE, is_source=True)

    def carry(self, seed: int) -> float:
        """Time from the offer of another blob to its last byte."""
        data = random.Random(seed).randbytes(SIZE)
        ref = blob_of(data, CHUNK)
        began = self.now
        self._stores[SOURCE].add(ref, data)
        self._relays[SOURCE].offer(ref, self.now)
        self._at(self._one_way_s, lambda: self._relays[A].fetch(ref, self.now))
        while ref.root not in self._relays[A].completed:
            assert self.now - began < 60.0, self._relays[A].progress(ref.root)
            self._step()
        return self.now - began

    def _step(self) -> None:
        deadlines = [at for relay in self._relays.values() if (at := relay.next_deadline()) is not None]
        self.now = max(self.now, min([*deadlines, *(at for at, _, _ in self._due[:1])]))
        while self._due and self._due[0][0] <= self.now:
            heapq.heappop(self._due)[2]()
        for name, relay in self._relays.items():
            deadline = relay.next_deadline()
            if deadline is not None and deadline <= self.now:
                relay.handle_timer(self.now)
            relay.flush(self.now)
            for _, message in relay.outbox:
                self._send(message, name)
            relay.outbox.clear()

    def _send(self, message: Wire, sender: PeerId) -> None:
        receiver, leaves_s = A if sender == SOURCE else SOURCE, 0.0
        if isinstance(message, Chunk):
            self._free_at = max(self._free_at, self.now) + len(message.data) / RATE
            leaves_s = self._free_at - self.now
            self._at(leaves_s + 2 * self._one_way_s, lambda: self._relays[sender].upload_done(receiver))
        self._at(leaves_s + self._one_way_s, lambda: self._relays[receiver].receive(message, sender, self.now))

    def _at(self, after_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + after_s, next(self._numbers), action))


@pytest.mark.parametrize(
    ("round_trip_s", "first", "later"), [(0.0, 0.95, 0.95), (0.05, 0.9, 0.95), (0.15, 0.7, 0.8), (0.3, 0.35, 0.6)]
)
def test_a_long_line_is_used_with_the_announcement_and_all_questions(
    round_trip_s: float, first: float, later: float
) -> None:
    line, least_s = LongLine(round_trip_s), SIZE / RATE + round_trip_s
    shares = [least_s / line.carry(seed) for seed in range(3)]
    assert first <= shares[0] <= 1.0
    assert later <= min(shares[1:]) <= 1.0
