"""Requests for parts: at most one for each part, a window for each peer, and a memory of what was asked of whom.

A part may be requested for this node's own owner, for other peers that wait for it, or for both.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import PeerId
from p2prl.protocol.link_messages import ChunkRequest
from p2prl.protocol.wire_codec import Wire
from p2prl.swarm.groups.config import GroupBodyConfig
from p2prl.swarm.groups.headers import KnownHeader

_REMEMBERED_PARTS = 256
"""Parts remembered for one peer: an answer may come long after its request was dropped, and is no fault."""

_REMEMBERED_PEERS = 256
"""Peers whose requests are remembered, those that left included."""


@dataclass(slots=True)
class PartRequest:
    """One part on its way."""

    peer: PeerId
    at: float
    waiting: dict[PeerId, None] = field(default_factory=dict)
    """Peers it is passed on to."""


class PartRequests:
    """Requests in flight by part."""

    def __init__(self, config: GroupBodyConfig, outbox: list[tuple[PeerId, Wire]]) -> None:
        self._config = config
        self._outbox = outbox
        self._in_flight: dict[Digest, PartRequest] = {}
        self._count: Counter[PeerId] = Counter()
        self._heard: dict[PeerId, float] = {}
        self._history: OrderedDict[PeerId, OrderedDict[Digest, None]] = OrderedDict()

    def __contains__(self, part: Digest) -> bool:
        return part in self._in_flight

    def get(self, part: Digest) -> PartRequest | None:
        """The request for a part, if it is on its way."""
        return self._in_flight.get(part)

    def passed_on(self, peer: PeerId | None = None) -> int:
        """Parts on their way for other peers, or for this one."""
        requests = self._in_flight.values()
        return sum(bool(r.waiting) if peer is None else peer in r.waiting for r in requests)

    def choose_source(self, header: KnownHeader, now: float, *, besides: PeerId | None = None) -> PeerId | None:
        """A peer to request a part of this body from: its author, or, if there is no link, the least busy other peer.

        None when there is none, or each has a full window.
        """
        able = [peer for peer, free_at in header.sources.items() if free_at <= now and peer != besides]
        if header.author in able:
            able = [header.author]
        able = [peer for peer in able if self._count[peer] < self._config.window]
        return min(able, key=lambda peer: self._count[peer], default=None)

    def send(self, part: Digest, peer: PeerId, now: float) -> PartRequest:
        """Request a part that is not on its way."""
        request = self._in_flight[part] = PartRequest(peer, now)
        self._count[peer] += 1
        asked = self._history.setdefault(peer, OrderedDict())
        self._history.move_to_end(peer)
        asked[part] = None
        asked.move_to_end(part)
        if len(asked) > _REMEMBERED_PARTS:
            asked.popitem(last=False)
        if len(self._history) > _REMEMBERED_PEERS:
            self._history.popitem(last=False)
        self._outbox.append((peer, ChunkRequest(part)))
        return request

    def has_asked(self, peer: PeerId, part: Digest | None = None) -> bool:
        """Whether this part, or any, was ever requested from a peer."""
        asked = self._history.get(peer)
        return asked is not None and (part is None or part in asked)

    def arrived(self, part: Digest, peer: PeerId, now: float) -> PartRequest | None:
        """A part came from a peer; returns the request it ends, which may have gone to another peer meanwhile."""
        self._heard[peer] = now
        return self.end(part)

    def end(self, part: Digest) -> PartRequest | None:
        """Remove and return the request for a part."""
        request = self._in_flight.pop(part, None)
        if request is not None:
            self._count[request.peer] -= 1
            if not self._count[request.peer]:
                del self._count[request.peer]
                self._heard.pop(request.peer, None)
        return request

    def to_peer(self, peer: PeerId) -> list[Digest]:
        """Parts on their way from a peer."""
        return [part for part, request in self._in_flight.items() if request.peer == peer]

    def remove_waiting(self, peer: PeerId) -> None:
        """A peer whose link is gone waits for nothing."""
        for request in self._in_flight.values():
            request.waiting.pop(peer, None)

    def overdue(self, now: float) -> list[Digest]:
        """Parts whose peer has sent nothing for too long."""
        return [part for part, request in self._in_flight.items() if self._due(request) <= now]

    def deadlines(self) -> Iterable[float]:
        """Times at which `overdue` changes."""
        return map(self._due, self._in_flight.values())

    def _due(self, request: PartRequest) -> float:
        return max(request.at, self._heard.get(request.peer, request.at)) + self._config.request_s
