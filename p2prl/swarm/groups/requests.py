"""Requests for parts: a window for each peer, and a memory of what was asked of whom.

A part may be requested for this node's own owner, for other peers that wait for it, or for both. It is requested from
two peers at once only for two headers that share it: a copied header must not decide where the original's parts come
from.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from p2prl.protocol.identity import PeerId
from p2prl.protocol.link_messages import ChunkRequest, Place
from p2prl.protocol.wire_codec import Wire
from p2prl.swarm.groups.groups_config import REQUEST_S, GroupBodyConfig
from p2prl.swarm.groups.headers import KnownHeader

_REMEMBERED_PARTS = 256
"""Parts remembered for one peer: an answer may come long after its request was dropped, and is no fault."""

_REMEMBERED_IN_ALL = 32_768
"""Parts remembered over all peers, those that left included: 8 MB, and four windows of a thousand neighbors."""


@dataclass(slots=True)
class PartRequest:
    """One part on its way from one peer."""

    part: Place
    peer: PeerId
    at: float
    waiting: dict[PeerId, None] = field(default_factory=dict)
    """Peers it is passed on to."""


class PartRequests:
    """Requests in flight by part and peer."""

    def __init__(self, config: GroupBodyConfig, outbox: list[tuple[PeerId, Wire]]) -> None:
        self._config = config
        self._outbox = outbox
        self._in_flight: dict[Place, dict[PeerId, PartRequest]] = {}
        self._count: Counter[PeerId] = Counter()
        self._heard: dict[PeerId, float] = {}
        self._history: OrderedDict[PeerId, OrderedDict[Place, None]] = OrderedDict()
        """Parts by the peer they were requested from, the one asked last at the end."""
        self._remembered = 0

    def of_part(self, part: Place) -> list[PartRequest]:
        """Requests for a part."""
        return list(self._in_flight.get(part, {}).values())

    def of_peer(self, peer: PeerId) -> list[PartRequest]:
        """Requests to a peer."""
        return [request for request in self._all() if request.peer == peer]

    def passed_on(self, peer: PeerId | None = None) -> int:
        """Parts on their way for other peers, or for this one."""
        return sum(bool(r.waiting) if peer is None else peer in r.waiting for r in self._all())

    def sources(self, header: KnownHeader, now: float, *, besides: PeerId | None = None) -> list[PeerId]:
        """Peers to request parts of a body from: its author, or, if it cannot be asked now, all others that can."""
        able = [peer for peer, free_at in header.sources.items() if free_at <= now and peer != besides]
        return [header.author] if header.author in able else able

    def on_its_way(self, part: Place, sources: Iterable[PeerId]) -> bool:
        """Whether a part was requested from one of these peers."""
        return not self._in_flight.get(part, {}).keys().isdisjoint(sources)

    def least_busy(self, sources: Iterable[PeerId]) -> PeerId | None:
        """The peer with the fewest requests; None when each has a full window."""
        able = [peer for peer in sources if self._count[peer] < self._config.window]
        return min(able, key=lambda peer: self._count[peer], default=None)

    def send(self, part: Place, peer: PeerId, now: float) -> PartRequest:
        """Request a part that is not on its way from this peer."""
        request = PartRequest(part, peer, now)
        self._in_flight.setdefault(part, {})[peer] = request
        self._count[peer] += 1
        self._remember(peer, part)
        self._outbox.append((peer, ChunkRequest(*part)))
        return request

    def has_asked(self, peer: PeerId, part: Place | None = None) -> bool:
        """Whether this part, or any, was ever requested from a peer."""
        asked = self._history.get(peer)
        return asked is not None and (part is None or part in asked)

    def heard(self, peer: PeerId, now: float) -> None:
        """A peer has sent a part: the others it was asked for may take as long again."""
        if self._count[peer]:
            self._heard[peer] = now

    def end(self, request: PartRequest) -> None:
        """Remove a request."""
        of_part = self._in_flight[request.part]
        del of_part[request.peer]
        if not of_part:
            del self._in_flight[request.part]
        self._count[request.peer] -= 1
        if not self._count[request.peer]:
            del self._count[request.peer]
            self._heard.pop(request.peer, None)

    def remove_waiting(self, peer: PeerId) -> None:
        """A peer whose link is gone waits for nothing."""
        for request in self._all():
            request.waiting.pop(peer, None)

    def overdue(self, now: float) -> list[PartRequest]:
        """Requests whose peer has sent nothing for too long."""
        return [request for request in self._all() if self._due(request) <= now]

    def deadlines(self) -> Iterable[float]:
        """Times at which `overdue` changes."""
        return map(self._due, self._all())

    def _remember(self, peer: PeerId, part: Place) -> None:
        asked = self._history.setdefault(peer, OrderedDict())
        self._history.move_to_end(peer)
        self._remembered += part not in asked
        asked[part] = None
        asked.move_to_end(part)
        if len(asked) > _REMEMBERED_PARTS:
            asked.popitem(last=False)
            self._remembered -= 1
        while self._remembered > _REMEMBERED_IN_ALL:
            _, forgotten = self._history.popitem(last=False)
            self._remembered -= len(forgotten)

    def _all(self) -> Iterator[PartRequest]:
        return (request for of_part in self._in_flight.values() for request in of_part.values())

    def _due(self, request: PartRequest) -> float:
        return max(request.at, self._heard.get(request.peer, request.at)) + REQUEST_S
