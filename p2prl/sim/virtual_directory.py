"""The peer directory of a simulated network: records by run and by name, written and read with a latency."""

from __future__ import annotations

import random
from collections.abc import Callable

from p2prl.protocol.identity import PeerId
from p2prl.sim.link_conditions import DelayDistribution
from p2prl.sim.virtual_time import VirtualLoop
from p2prl.swarm.events import LookUp, Register

SAMPLE = 100
"""Records in the answer to one lookup, as from five nodes of the DHT that answer with 20 each."""

_Record = tuple[bytes, float]


class _RunRecords:
    """Records under one run's key, of which a sample can be drawn without going through all."""

    def __init__(self) -> None:
        self._records: dict[PeerId, _Record] = {}
        self._owners: list[PeerId] = []
        self._place: dict[PeerId, int] = {}

    def put(self, owner: PeerId, record: bytes, expires_at: float) -> None:
        if owner not in self._place:
            self._place[owner] = len(self._owners)
            self._owners.append(owner)
        self._records[owner] = record, expires_at

    def sample(self, now: float, rng: random.Random) -> list[bytes]:
        """Up to `SAMPLE` live records: all of them in the order of their coming, or a sample."""
        if len(self._owners) > SAMPLE:
            drawn = [self._owners[rng.randrange(len(self._owners))] for _ in range(SAMPLE)]
            owners = list(dict.fromkeys(drawn))
        else:
            owners = list(self._owners)
        live = []
        for owner in owners:
            record, expires_at = self._records[owner]
            if expires_at > now:
                live.append(record)
            else:
                self._remove(owner)
        return live

    def _remove(self, owner: PeerId) -> None:
        place, last = self._place.pop(owner), self._owners.pop()
        if last != owner:
            self._owners[place] = last
            self._place[last] = place
        del self._records[owner]


class VirtualDirectory:
    """Replaces the DHT: records by run and owner, readable until they expire. A run's key is read by samples."""

    def __init__(self, loop: VirtualLoop, rng: random.Random, latency: DelayDistribution) -> None:
        self._loop = loop
        self._rng = rng
        self._latency = latency
        self._runs: dict[bytes, _RunRecords] = {}
        self._names: dict[tuple[bytes, PeerId], _Record] = {}

    def put(self, run: bytes, owner: PeerId, record: bytes, expires_at: float) -> None:
        """Write a record under the run's key at once."""
        self._runs.setdefault(run, _RunRecords()).put(owner, record, expires_at)

    def register(self, run: bytes, owner: PeerId, register: Register, clock_offset_s: float) -> None:
        """Write a record after the directory's latency."""
        expires_at = register.expires_at - clock_offset_s

        def write() -> None:
            if register.under_run:
                self.put(run, owner, register.record, expires_at)
            if register.under_name:
                self._names[run, owner] = register.record, expires_at

        self._later(write)

    def look_up(self, run: bytes, wanted: LookUp, answer: Callable[[list[bytes]], None]) -> None:
        """Pass live records of a run to `answer` after the directory's latency."""
        self._later(lambda: answer(self._found(run, wanted)))

    def _found(self, run: bytes, wanted: LookUp) -> list[bytes]:
        named = [self._names.get((run, peer), (b"", 0.0)) for peer in wanted.peers]
        found = [record for record, expires_at in named if expires_at > self._loop.now]
        records = self._runs.get(run) if wanted.is_sample else None
        return found if records is None else [*found, *records.sample(self._loop.now, self._rng)]

    def _later(self, action: Callable[[], None]) -> None:
        self._loop.at(self._loop.now + self._latency.draw(self._rng), action)
