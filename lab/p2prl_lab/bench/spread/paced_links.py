"""Home links on virtual time: an uplink carries one chunk after the other, a downlink several side by side.

An uplink sends chunks in order, at its own rate; the bits arrive one latency later. A downlink takes chunks of several
senders side by side, as TCP connections share a line: each takes its share of the line's capacity in the order in which
they were sent, and is complete when its sender has sent it as well. A slow sender does not hold up the others. This
models a paced sender on a home link. Control messages take only the latency, but their bytes are charged to the uplink,
and chunks wait longer for it: so does the product's bucket.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from p2prl.sim.virtual_time import Action, VirtualLoop


@dataclass(slots=True)
class PacedLink:
    """One peer's uplink and downlink. Rates in bytes/s."""

    upload_bytes_s: float
    download_bytes_s: float
    region: int = 0
    alive: bool = True
    sent_bytes: float = 0.0
    """Bytes of chunks."""
    control_bytes: float = 0.0
    _queue: deque[tuple[int, int, Action, Action]] = field(default_factory=deque)
    _busy: bool = False
    _download_free: float = 0.0
    _debt_bytes: float = 0.0
    """Control bytes that the next chunk waits for."""


class PacedLinks:
    """All links of a swarm, peers numbered from 0."""

    def __init__(
        self, loop: VirtualLoop, links: Sequence[PacedLink], *, near_s: float = 0.015, far_s: float = 0.06
    ) -> None:
        """One-way latencies in seconds within a region and between regions."""
        self.loop = loop
        self.links = links
        self._near_s = near_s
        self._far_s = far_s

    def latency_s(self, one: int, other: int) -> float:
        """One-way latency between two peers."""
        return self._near_s if self.links[one].region == self.links[other].region else self._far_s

    def tell(self, delay_s: float, received: Action) -> None:
        """Send a control message, or several with equal latency."""
        self.loop.at(self.loop.now + delay_s, received)

    def charge(self, source: int, size_bytes: int) -> None:
        """Count control bytes that leave a peer."""
        self.links[source].control_bytes += size_bytes
        self.links[source]._debt_bytes += size_bytes

    def send(self, source: int, destination: int, size_bytes: int, arrived: Action, acknowledged: Action) -> None:
        """Queue a chunk. `arrived` runs at the destination unless either end dies first, `acknowledged` at the source
        one latency later. A chunk to a dead peer still uses the uplink, because the sender does not know."""
        link = self.links[source]
        link._queue.append((destination, size_bytes, arrived, acknowledged))
        if not link._busy:
            self._begin(source)

    def kill(self, peer: int) -> None:
        """Power off, silently."""
        self.links[peer].alive = False
        self.links[peer]._queue.clear()

    def _begin(self, source: int) -> None:
        link = self.links[source]
        if not link._queue or not link.alive:
            link._busy = False
            return
        link._busy = True
        destination, size, arrived, acknowledged = link._queue.popleft()
        receiver = self.links[destination]
        now, latency = self.loop.now, self.latency_s(source, destination)
        sent_at = now + (size + link._debt_bytes) / link.upload_bytes_s
        link._debt_bytes = 0.0
        link.sent_bytes += size
        receiver._download_free = max(now + latency, receiver._download_free) + size / receiver.download_bytes_s
        complete_at = max(sent_at + latency, receiver._download_free)
        self.loop.at(sent_at, lambda: self._begin(source))

        def arrive() -> None:
            if receiver.alive and (link.alive or sent_at <= now):
                arrived()
                self.loop.at(self.loop.now + latency, acknowledge)

        def acknowledge() -> None:
            if link.alive:
                acknowledged()

        self.loop.at(complete_at, arrive)
