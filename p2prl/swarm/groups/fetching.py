"""Bodies that this node's owner wants: their parts on disk, the budgets they count against, and what makes room.

Every part is written as it arrives, so a restart requests only the missing ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from p2prl.protocol.digests import Digest
from p2prl.protocol.link_messages import Chunk
from p2prl.swarm.disk_quota import DiskQuota
from p2prl.swarm.groups.groups_config import KEPT_S, PATIENCE_S, STALLED_S, GroupBodyConfig
from p2prl.swarm.groups.headers import KnownHeader, KnownHeaders
from p2prl.swarm.groups.requests import PartRequests
from p2prl.swarm.ports import BlobStore


@dataclass(slots=True)
class Body:
    """A body on disk, complete or not."""

    header: KnownHeader
    missing: set[int]
    began_at: float
    progressed_at: float
    released_at: float = math.inf
    """When the owner was done with it; ∞ before."""

    @property
    def size_bytes(self) -> int:
        return self.header.ref.size_bytes


class BodyFetching:
    """Wanted bodies by the digest of their header's envelope, oldest first."""

    def __init__(
        self,
        headers: KnownHeaders,
        requests: PartRequests,
        store: BlobStore,
        config: GroupBodyConfig,
        quota: DiskQuota,
    ) -> None:
        self._headers = headers
        self._requests = requests
        self._store = store
        self._config = config
        self._quota = quota
        self._bodies: dict[Digest, Body] = {}
        self.due = False
        """Whether something changed since the last `request_more`."""
        self.completed: list[KnownHeader] = []
        """Headers whose body is complete, for the owner to take and clear."""

    def start(self, name: Digest, now: float) -> None:
        """Fetch the body of a known header, if the budgets allow; report it again if it is complete."""
        body, header = self._bodies.get(name), self._headers.get(name)
        if body is None and header is not None and self._make_room(header, now):
            self._quota.reserve(_reservation(header), header.ref.size_bytes)
            present = self._store.begin(header.ref)
            missing = set(range(header.ref.total)) - present
            body = self._bodies[name] = Body(header, missing, began_at=now, progressed_at=now)
            self._headers.hold(name)
            if not missing:
                self._store.finish(header.ref)
        if body is not None and not body.missing:
            body.released_at = math.inf
            self.completed.append(body.header)
        self.due = True

    def release(self, name: Digest, now: float) -> None:
        """The owner is done with a body: it is served a little longer."""
        if name in self._bodies:
            self._bodies[name].released_at = now

    def read(self, name: Digest, index: int) -> Chunk | None:
        """A part that is on disk."""
        if not self.holds(name, index):
            return None
        ref = self._bodies[name].header.ref
        return Chunk(ref.root, index, self._store.proof(ref, index), self._store.read(ref, index))

    def holds(self, name: Digest, index: int) -> bool:
        """Whether a part is on disk."""
        body = self._bodies.get(name)
        return body is not None and 0 <= index < body.header.ref.total and index not in body.missing

    def fill(self, part: Chunk, now: float) -> None:
        """Write a part, whose proof was checked, wherever it is missing: a copied header has the body of another."""
        for header in self._headers.of_body(Digest(part.root)):
            body = self._bodies.get(header.name)
            if body is None or part.index not in body.missing:
                continue
            self._store.write(header.ref, part.index, part.data, part.proof)
            body.missing.discard(part.index)
            body.progressed_at = now
            if not body.missing:
                self._store.finish(header.ref)
                self.completed.append(header)
        self.due = True

    def request_more(self, now: float) -> None:
        """Request missing parts, the oldest body first, as far as the windows of the sources allow."""
        if not self.due:
            return
        self.due = False
        for body in self._bodies.values():
            sources = self._requests.sources(body.header, now)
            for index in sorted(body.missing):
                part = body.header.root, index
                if self._requests.on_its_way(part, sources):
                    continue
                source = self._requests.least_busy(sources)
                if source is None:
                    break
                self._requests.send(part, source, now)

    def handle_timer(self, now: float) -> None:
        """Delete bodies that gained nothing for too long, and those that were served long enough."""
        for name, body in list(self._bodies.items()):
            if self._expires_at(body) <= now:
                self._drop(name)
        self.due = True

    def deadlines(self) -> Iterator[float]:
        """Times at which a body expires, or a source may be asked again."""
        for body in self._bodies.values():
            yield self._expires_at(body)
            if body.missing:
                yield from body.header.sources.values()

    def _expires_at(self, body: Body) -> float:
        """A complete body waits for its owner as long as it takes."""
        if body.missing:
            return body.progressed_at + PATIENCE_S
        return body.released_at + KEPT_S

    def _make_room(self, header: KnownHeader, now: float) -> bool:
        config, size = self._config, header.ref.size_bytes
        of_author = sum(
            body.size_bytes
            for body in self._bodies.values()
            if body.header.author == header.author and math.isinf(body.released_at)
        )
        if of_author + size > config.author_bytes:
            return False
        excess_bytes = sum(body.size_bytes for body in self._bodies.values()) + size - config.disk_bytes
        excess_bytes = max(excess_bytes, self._quota.lacks(size))  # only bodies give way: weights and data stay
        excess = len(self._bodies) + 1 - config.bodies
        dropped = []
        for _, name in sorted((self._rank(body), name) for name, body in self._bodies.items()):
            if excess_bytes <= 0 and excess <= 0:
                break
            if self._gives_way(self._bodies[name], now):
                dropped.append(name)
                excess_bytes -= self._bodies[name].size_bytes
                excess -= 1
        if excess_bytes > 0 or excess > 0:
            return False
        for name in dropped:
            self._drop(name)
        return self._quota.holds(_reservation(header)) or not self._quota.lacks(size)

    def _rank(self, body: Body) -> tuple[float, float]:
        """Bodies that the owner has taken make room first, then those that gained a part longest ago."""
        return body.released_at, body.progressed_at

    def _gives_way(self, body: Body, now: float) -> bool:
        if not body.missing:
            return not math.isinf(body.released_at)
        age_s = now - body.began_at
        arrived = body.size_bytes * (1 - len(body.missing) / body.header.ref.total)
        slow = age_s > STALLED_S and arrived < self._config.least_bytes_s * age_s
        return slow or now - body.progressed_at > STALLED_S

    def _drop(self, name: Digest) -> None:
        body = self._bodies.pop(name)
        self._headers.release(name)
        root = body.header.root
        if not any(other.header.root == root for other in self._bodies.values()):  # a copied header shares it
            self._store.drop(root)
            self._quota.release(_reservation(body.header))


def _reservation(header: KnownHeader) -> bytes:
    """A body's name in the quota; weights with the same bytes have another."""
    return b"group/" + header.root
