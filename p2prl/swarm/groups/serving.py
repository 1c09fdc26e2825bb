"""Parts sent to other peers: the node's own groups from memory, fetched ones from disk, and others passed on.

The learner is served first, then the others in turn. A relay that does not have a part requests it from the peer that
sent it the header, and keeps nothing: a request moves one part, so a small message never starts a large transfer.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from p2prl.protocol import limits
from p2prl.protocol.digests import Digest
from p2prl.protocol.hash_tree import proof_among
from p2prl.protocol.identity import PeerId
from p2prl.protocol.link_messages import Chunk, ChunkRefused, Place, place_of
from p2prl.protocol.manifests import tree_of
from p2prl.protocol.wire_codec import Wire
from p2prl.swarm.groups.fetching import BodyFetching
from p2prl.swarm.groups.groups_config import GroupBodyConfig
from p2prl.swarm.groups.headers import KnownHeaders
from p2prl.swarm.groups.requests import PartRequests

_BUSY_MS = 500
"""A peer refused for lack of room asks again after this long."""

_SUPPLY_MS = 1_000
"""The same while the owner supplies the body of its own group again."""

_SUPPLY_S = 2.0
"""How often the owner is asked for the same body at most: it reads it from disk."""


@dataclass(frozen=True, slots=True)
class _Queued:
    """A part to send."""

    part: Place
    message: Chunk | None = None
    """None for one that is read when its turn comes."""


@dataclass(frozen=True, slots=True)
class _OwnBody:
    """The body of an own group."""

    data: bytes
    nodes: bytes
    """Of its tree."""


class PartServing:
    """Requests of other peers, queued within the budgets."""

    def __init__(
        self,
        headers: KnownHeaders,
        requests: PartRequests,
        fetching: BodyFetching,
        config: GroupBodyConfig,
        outbox: list[tuple[PeerId, Wire]],
        is_learner: Callable[[PeerId], bool],
    ) -> None:
        """`is_learner` tells whether a peer has the run's key."""
        self._headers = headers
        self._requests = requests
        self._fetching = fetching
        self._config = config
        self._outbox = outbox
        self._is_learner = is_learner
        self._own: OrderedDict[Digest, _OwnBody] = OrderedDict()
        self._queues: OrderedDict[PeerId, deque[_Queued]] = OrderedDict()
        self._sending: Counter[PeerId] = Counter()
        self._supply_asked: dict[Digest, float] = {}
        self.relays = True
        """Whether parts of other peers' groups are sent; False while the month's upload budget is used up."""
        self.wanted: list[Digest] = []
        """Own groups whose body the owner has to supply, for it to take and clear."""

    def hold(self, name: Digest, body: bytes) -> None:
        """Keep the body of an own group, within the memory budget; the one supplied longest ago is dropped first."""
        self._own[name] = _OwnBody(body, tree_of(body, limits.GROUP_PART_BYTES)[1])
        self._own.move_to_end(name)
        while sum(len(own.data) for own in self._own.values()) > self._config.own_bytes:
            self._own.popitem(last=False)
        self._supply_asked.pop(name, None)

    def on_request(self, source: PeerId, part: Place, now: float) -> bool:
        """Queue a part, request it elsewhere, or refuse. False when no known body contains it."""
        if all(part[1] >= header.ref.total for header in self._headers.of_body(part[0])):
            return False
        queue = self._queues.get(source, ())
        if any(queued.part == part for queued in queue):
            return True
        if len(queue) >= self._config.queued_per_peer:
            self._refuse(source, part, _BUSY_MS)
        elif self._is_here(part):
            self._enqueue(source, _Queued(part))
        elif not self._ask_owner(part, now):
            self._pass_on(source, part, now)
        else:
            self._refuse(source, part, _SUPPLY_MS)
        return True

    def pass_part(self, peer: PeerId, message: Chunk) -> None:
        """Send a part that arrived for a peer which waited for it."""
        self._enqueue(peer, _Queued(place_of(message), message))

    def upload_done(self, peer: PeerId) -> None:
        """The shell has sent one part to a peer, or failed to."""
        if self._sending[peer] > 1:
            self._sending[peer] -= 1
        else:
            del self._sending[peer]

    def remove_peer(self, peer: PeerId) -> None:
        """Drop what a peer whose link is gone has requested."""
        self._queues.pop(peer, None)

    def flush(self) -> None:
        """Send queued parts, as many as the shell may have at once."""
        while self._sending.total() < self._config.sending and (peer := self._next_peer()) is not None:
            queue = self._queues[peer]
            queued = queue.popleft()
            self._queues.move_to_end(peer)
            if not queue:
                del self._queues[peer]
            message = queued.message or self._read(queued.part)
            if message is not None:
                self._sending[peer] += 1
                self._outbox.append((peer, message))
            else:
                self._refuse(peer, queued.part, _BUSY_MS)

    def _next_peer(self) -> PeerId | None:
        able = [peer for peer in self._queues if self._sending[peer] < self._config.sending_per_peer]
        return next(filter(self._is_learner, able), able[0] if able else None)

    def _is_here(self, part: Place) -> bool:
        root, index = part
        return any(
            header.name in self._own or (self.relays and self._fetching.holds(header.name, index))
            for header in self._headers.of_body(root)
        )

    def _read(self, part: Place) -> Chunk | None:
        root, index = part
        for header in self._headers.of_body(root):
            own = self._own.get(header.name)
            if own is not None:
                offset, length = header.ref.span(index)
                proof = proof_among(own.nodes, index, header.ref.total)
                return Chunk(root, index, proof, own.data[offset : offset + length])
            if (message := self._fetching.read(header.name, index)) is not None:
                return message
        return None

    def _ask_owner(self, part: Place, now: float) -> bool:
        """Whether this is part of an own group whose body is no longer in memory; the owner is asked for it then."""
        for header in self._headers.of_body(part[0]):
            if header.first_source is None:
                if now - self._supply_asked.get(header.name, -_SUPPLY_S) >= _SUPPLY_S:
                    self._supply_asked[header.name] = now
                    self.wanted.append(header.name)
                    if len(self._supply_asked) > self._config.known:
                        del self._supply_asked[next(iter(self._supply_asked))]
                return True
        return False

    def _pass_on(self, source: PeerId, part: Place, now: float) -> None:
        """Request a part for another peer from where its header came from."""
        request = next((other for other in self._requests.of_part(part) if other.peer != source), None)
        headers = self._headers.of_body(part[0])
        if not self.relays or not any(set(header.sources) - {source} for header in headers):
            self._refuse(source, part, 0)
            return
        held = sum(queued.message is not None for queue in self._queues.values() for queued in queue)
        full = self._requests.passed_on() + held >= self._config.pulled
        if request is None and not full and self._requests.passed_on(source) < self._config.window:
            sources = (self._requests.sources(header, now, besides=source) for header in headers)
            peer = next(filter(None, map(self._requests.least_busy, sources)), None)
            request = None if peer is None else self._requests.send(part, peer, now)
        if request is None or (full and not request.waiting):
            self._refuse(source, part, _BUSY_MS)
        else:
            request.waiting[source] = None

    def _enqueue(self, peer: PeerId, queued: _Queued) -> None:
        self._queues.setdefault(peer, deque()).append(queued)

    def _refuse(self, peer: PeerId, part: Place, retry_ms: int) -> None:
        self._outbox.append((peer, ChunkRefused(*part, retry_ms)))
