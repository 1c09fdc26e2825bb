"""Group headers a node has accepted: the body each one names, and the linked peers that can send its parts."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened, body_of
from p2prl.protocol.identity import PeerId, peer_id_of
from p2prl.protocol.manifests import BlobRef
from p2prl.protocol.rollout_group import GroupHeader
from p2prl.swarm.groups.groups_config import GroupBodyConfig

HEADERS_PER_BODY = 16
"""Headers of other peers remembered for one body. Copies of a header are attacks: every request for a part of the body
costs a look at each."""


@dataclass(slots=True)
class KnownHeader:
    """One accepted header."""

    opened: Opened
    ref: BlobRef
    author: PeerId
    first_source: PeerId | None
    """The peer that sent it first; None for this node's own group."""
    root: Digest = field(init=False)
    """The body's name."""
    sources: dict[PeerId, float] = field(default_factory=dict)
    """Linked peers that announced the header → time from which they may be asked for parts."""

    def __post_init__(self) -> None:
        self.root = self.ref.root

    @property
    def name(self) -> Digest:
        return self.opened.digest


class KnownHeaders:
    """Headers by envelope digest, within the budgets. Held ones are never dropped."""

    def __init__(self, config: GroupBodyConfig) -> None:
        self._config = config
        self._headers: OrderedDict[Digest, KnownHeader] = OrderedDict()
        self._by_source: Counter[PeerId | None] = Counter()
        self._bodies: dict[Digest, dict[Digest, None]] = {}
        """Body's root → its headers: a copied header names the body of another."""
        self._held: set[Digest] = set()

    def get(self, name: Digest) -> KnownHeader | None:
        """The header of this digest."""
        return self._headers.get(name)

    def hold(self, name: Digest) -> None:
        """Do not drop a known header, nor forget it for its body."""
        self._held.add(name)
        self._bodies.setdefault(self._headers[name].root, {})[name] = None

    def release(self, name: Digest) -> None:
        """Let a header be dropped again."""
        self._held.discard(name)
        self._bound_headers(self._headers[name].root)

    def of_body(self, root: Digest) -> list[KnownHeader]:
        """Headers of the body with this root."""
        return [self._headers[name] for name in self._bodies.get(root, ())]

    def add(self, opened: Opened, source: PeerId | None) -> None:
        """Remember an accepted header and who sent it; `source` is None for one of this node's own."""
        known = self._headers.get(opened.digest)
        if known is None:
            ref = body_of(opened, GroupHeader).body
            known = KnownHeader(opened, ref, peer_id_of(opened.author), source)
            self._headers[opened.digest] = known
            self._by_source[source] += 1
            self._bodies.setdefault(known.root, {})[known.name] = None
            self._bound_headers(known.root)
            if self._by_source[source] > self._config.known_per_source and source is not None:
                self._drop_oldest(header for header in self._headers.values() if header.first_source == source)
            foreign = len(self._headers) - self._by_source[None]
            if source is None and self._by_source[None] > self._config.known:
                self._drop_oldest(header for header in self._headers.values() if header.first_source is None)
            elif source is not None and foreign > self._config.known:
                self._drop_oldest(header for header in self._headers.values() if header.first_source is not None)
        if source is not None:
            self.add_source(opened.digest, source)

    def add_source(self, name: Digest, peer: PeerId) -> bool:
        """A linked peer announced this header. False when it is not known."""
        known = self._headers.get(name)
        if known is not None and (len(known.sources) < self._config.sources or peer == known.author):
            known.sources.setdefault(peer, -math.inf)
        return known is not None

    def remove_peer(self, peer: PeerId) -> None:
        """Nothing can be requested from a peer whose link is gone."""
        for header in self._headers.values():
            header.sources.pop(peer, None)

    def _drop_oldest(self, headers: Iterable[KnownHeader]) -> None:
        oldest = next((header for header in headers if header.name not in self._held), None)
        if oldest is None:
            return
        del self._headers[oldest.name]
        self._by_source[oldest.first_source] -= 1
        if not self._by_source[oldest.first_source]:
            del self._by_source[oldest.first_source]
        self._forget(oldest)

    def _bound_headers(self, root: Digest) -> None:
        """Past `HEADERS_PER_BODY` forget the oldest of the peer that sent most of them: copies that come through one
        link must not displace the original. Own and held headers do not count."""
        known = self.of_body(root)
        foreign = [each for each in known if each.first_source is not None and each.name not in self._held]
        counts = Counter(header.first_source for header in foreign)
        while len(foreign) > HEADERS_PER_BODY:
            most = max(counts.values())
            oldest = next(header for header in foreign if counts[header.first_source] == most)
            foreign.remove(oldest)
            counts[oldest.first_source] -= 1
            self._forget(oldest)

    def _forget(self, header: KnownHeader) -> None:
        headers = self._bodies.get(header.root, {})
        headers.pop(header.name, None)
        if not headers:
            self._bodies.pop(header.root, None)
