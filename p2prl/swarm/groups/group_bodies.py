"""Transfer of large groups: the header gossips like any envelope, its body moves only where it is requested.

The owner of a node decides which bodies it wants: a learner those it will store, a validator those it audits. Parts
come with a proof that they are the body's, so wrong ones prove a fault of their sender. They travel as bulk
frames, which delay no other message. Relays between a volunteer and the learner pass requested parts on and store none.

Pure: the owner passes messages and `now` in, and drains `outbox` after `flush`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import chain

from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened
from p2prl.protocol.identity import PeerId
from p2prl.protocol.link_messages import Chunk, ChunkRefused, Place, place_of
from p2prl.protocol.manifests import BlobRef
from p2prl.protocol.wire_codec import Wire
from p2prl.swarm.chunk_faults import BadChunkError
from p2prl.swarm.disk_quota import DiskQuota
from p2prl.swarm.groups.fetching import BodyFetching
from p2prl.swarm.groups.groups_config import PAUSE_S, GroupBodyConfig
from p2prl.swarm.groups.headers import KnownHeader, KnownHeaders
from p2prl.swarm.groups.requests import PartRequest, PartRequests
from p2prl.swarm.groups.serving import PartServing
from p2prl.swarm.ports import BlobStore

_LONGEST_RETRY_S = 10.0
"""The longest pause that a refusal can ask for."""


class GroupBodies:
    """Headers, requests and bodies of one node."""

    def __init__(
        self,
        store: BlobStore,
        config: GroupBodyConfig,
        *,
        is_learner: Callable[[PeerId], bool],
        quota: DiskQuota | None = None,
    ) -> None:
        """`store` keeps fetched bodies, within `quota`; `is_learner` tells whether a peer has the run's key."""
        self.outbox: list[tuple[PeerId, Wire]] = []
        self._config = config
        self._headers = KnownHeaders(config)
        self._requests = PartRequests(config, self.outbox)
        self._fetching = BodyFetching(self._headers, self._requests, store, config, quota or DiskQuota())
        self._serving = PartServing(self._headers, self._requests, self._fetching, config, self.outbox, is_learner)
        self._timer_ran_at = -math.inf

    # --- calls of the owner ------------------------------------------------------------------------------------

    def hold(self, name: Digest, body: bytes) -> None:
        """Serve the body of an own group, in memory."""
        self._serving.hold(name, body)

    def fetch(self, name: Digest, now: float) -> None:
        """Fetch the body of an accepted header, if the budgets allow. Cheap to repeat, and reports completion again."""
        self._fetching.start(name, now)

    def release(self, name: Digest, now: float) -> None:
        """The owner has taken a complete body, or has no use for it."""
        self._fetching.release(name, now)

    def allow_relaying(self, allowed: bool) -> None:
        """Set whether parts of other peers' groups are sent; those of own groups always are."""
        self._serving.relays = allowed

    def take_completed(self) -> list[KnownHeader]:
        """Headers whose bodies have become complete."""
        completed, self._fetching.completed = self._fetching.completed, []
        return completed

    def take_wanted(self) -> list[Digest]:
        """Own groups whose bodies the owner has to supply with `hold`."""
        wanted, self._serving.wanted = self._serving.wanted, []
        return wanted

    # --- gossip ------------------------------------------------------------------------------------------------

    def note(self, opened: Opened, source: PeerId | None) -> None:
        """An accepted header, from a peer or, with None, of this node's own group."""
        self._headers.add(opened, source)
        self._fetching.due = True

    def announced(self, names: Iterable[bytes], source: PeerId) -> None:
        """A peer announces envelopes; it is a further source of the bodies among them."""
        for name in names:
            self._headers.add_source(Digest(name), source)

    def remove_peer(self, peer: PeerId) -> None:
        """Forget a peer whose link is gone."""
        self._headers.remove_peer(peer)
        self._requests.remove_waiting(peer)
        self._serving.remove_peer(peer)
        for request in self._requests.of_peer(peer):
            self._fail(request, retry_ms=500)

    # --- messages: each returns False for a chunk that belongs to no group ---------------------------------------

    def on_request(self, source: PeerId, part: Place, now: float) -> bool:
        """A peer requests a part."""
        return self._serving.on_request(source, part, now)

    def on_part(self, source: PeerId, message: Chunk, now: float) -> bool:
        """A part from a peer, if it was requested from it.

        Raises `BadChunkError` when it is wrong. One of another size than its header gives it is: its author signed a
        hash of more bytes than the header counts, and they must fill neither a disk nor a relay.
        """
        part = place_of(message)
        if not self._requests.has_asked(source, part):
            return False
        headers = self._headers.of_body(part[0])
        requests = self._requests.of_part(part)
        if headers and not _proves(headers[0].ref, message):
            raise BadChunkError("part: its proof does not lead to the body's hash")
        waiting: dict[PeerId, None] = {}
        for request in requests:
            self._requests.end(request)
            waiting |= request.waiting
        self._requests.heard(source, now)
        self._fetching.fill(message, now)
        for peer in waiting:
            if headers:
                self._serving.pass_part(peer, message)
            else:  # nothing is left to check it with
                self.outbox.append((peer, ChunkRefused(*part, 0)))
        return True

    def on_refused(self, source: PeerId, part: Place, retry_ms: int, now: float) -> bool:
        """A peer refuses a part: for a while, or with 0 because it cannot get it."""
        if not self._requests.has_asked(source, part):
            return False
        for request in self._requests.of_part(part):
            if request.peer == source:
                self._pause(request, now + min(max(retry_ms, 0) / 1000, _LONGEST_RETRY_S), for_good=retry_ms <= 0)
                self._fail(request, retry_ms=retry_ms)
        return True

    def upload_done(self, peer: PeerId) -> None:
        """The shell has sent one part to a peer, or failed to."""
        self._serving.upload_done(peer)

    # --- time --------------------------------------------------------------------------------------------------

    def handle_timer(self, now: float) -> None:
        """Give up requests that were not answered, and bodies that expired."""
        self._timer_ran_at = now
        for request in self._requests.overdue(now):
            self._pause(request, now + PAUSE_S, for_good=False)
            self._fail(request, retry_ms=500)
        self._fetching.handle_timer(now)

    def next_deadline(self) -> float:
        """When `handle_timer` is due; ∞ while no body moves."""
        ran_at, soonest = self._timer_ran_at, math.inf
        for at in chain(self._requests.deadlines(), self._fetching.deadlines()):
            if ran_at < at < soonest:
                soonest = at
        return soonest

    def flush(self, now: float) -> None:
        """Fill `outbox` with requests and parts."""
        self._fetching.request_more(now)
        self._serving.flush()

    def _pause(self, request: PartRequest, until: float, *, for_good: bool) -> None:
        """Do not ask the peer of a failed request for this body before `until`, or not before it announces it again."""
        for header in self._headers.of_body(request.part[0]):
            if request.peer in header.sources:
                if for_good:
                    del header.sources[request.peer]
                else:
                    header.sources[request.peer] = until

    def _fail(self, request: PartRequest, *, retry_ms: int) -> None:
        """End a request without its part: it is made again elsewhere, and the peers that waited for it are told."""
        self._requests.end(request)
        self._fetching.due = True
        for peer in request.waiting:
            self.outbox.append((peer, ChunkRefused(*request.part, retry_ms)))


def _proves(ref: BlobRef, part: Chunk) -> bool:
    return part.index < ref.total and ref.proves(part.index, part.data, part.proof)
