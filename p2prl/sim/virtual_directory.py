"""The peer directory of a simulated network: records under a run's key, written and read with a latency."""

from __future__ import annotations

import random
from collections.abc import Callable

from p2prl.protocol.identity import PeerId
from p2prl.sim.link_conditions import DelayDistribution
from p2prl.sim.virtual_time import VirtualLoop


class VirtualDirectory:
    """Replaces the DHT: one record per run and owner, readable until it expires."""

    def __init__(self, loop: VirtualLoop, rng: random.Random, latency: DelayDistribution) -> None:
        self._loop = loop
        self._rng = rng
        self._latency = latency
        self._records: dict[bytes, dict[PeerId, tuple[bytes, float]]] = {}

    def put(self, run: bytes, owner: PeerId, record: bytes, expires_at: float) -> None:
        """Write a record at once."""
        self._records.setdefault(run, {})[owner] = (record, expires_at)

    def put_later(self, run: bytes, owner: PeerId, record: bytes, expires_at: float) -> None:
        """Write a record after the directory's latency."""
        self._later(lambda: self.put(run, owner, record, expires_at))

    def look_up(self, run: bytes, answer: Callable[[list[bytes]], None]) -> None:
        """Pass the live records of a run to `answer` after the directory's latency."""
        self._later(lambda: answer(self._live(run)))

    def _live(self, run: bytes) -> list[bytes]:
        records = self._records.get(run, {}).values()
        return [record for record, expires_at in records if expires_at > self._loop.now]

    def _later(self, action: Callable[[], None]) -> None:
        self._loop.at(self._loop.now + self._latency.draw(self._rng), action)
