"""Group headers a node has accepted: the parts each one names, and the linked peers that can send them."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened, body_of
from p2prl.protocol.identity import PeerId, peer_id_of
from p2prl.protocol.manifests import BlobRef
from p2prl.protocol.rollout_group import GroupHeader
from p2prl.swarm.groups.config import GroupBodyConfig


@dataclass(slots=True)
class KnownHeader:
    """One accepted header."""

    opened: Opened
    ref: BlobRef
    author: PeerId
    first_source: PeerId | None
    """The peer that sent it first; None for this node's own group."""
    sources: dict[PeerId, float] = field(default_factory=dict)
    """Linked peers that announced the header → time from which they may be asked for parts."""

    @property
    def name(self) -> Digest:
        return self.opened.digest


class KnownHeaders:
    """Headers by envelope digest, within the budgets. Those in `held` are never dropped."""

    def __init__(self, config: GroupBodyConfig) -> None:
        self._config = config
        self._headers: OrderedDict[Digest, KnownHeader] = OrderedDict()
        self._by_source: Counter[PeerId | None] = Counter()
        self._places: dict[Digest, dict[tuple[Digest, int], None]] = {}
        """Part → (header, index) of each place it belongs to. A copied header names the parts of another."""
        self.held: set[Digest] = set()

    def get(self, name: Digest) -> KnownHeader | None:
        """The header of this digest."""
        return self._headers.get(name)

    def places_of(self, part: Digest) -> Collection[tuple[Digest, int]]:
        """(header, index) of every known body that contains this part."""
        return self._places.get(part, {}).keys()

    def bodies_with(self, part: Digest) -> list[tuple[KnownHeader, int]]:
        """Every known body that contains this part, and its index there."""
        return [(self._headers[name], index) for name, index in self.places_of(part)]

    def add(self, opened: Opened, source: PeerId | None) -> None:
        """Remember an accepted header and who sent it; `source` is None for one of this node's own."""
        known = self._headers.get(opened.digest)
        if known is None:
            ref = body_of(opened, GroupHeader).body
            known = KnownHeader(opened, ref, peer_id_of(opened.author), source)
            self._headers[opened.digest] = known
            self._by_source[source] += 1
            for index, part in enumerate(ref.chunks):
                self._places.setdefault(Digest(part), {})[opened.digest, index] = None
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
        oldest = next((header for header in headers if header.name not in self.held), None)
        if oldest is None:
            return
        del self._headers[oldest.name]
        self._by_source[oldest.first_source] -= 1
        if not self._by_source[oldest.first_source]:
            del self._by_source[oldest.first_source]
        for index, part in enumerate(oldest.ref.chunks):
            places = self._places[Digest(part)]
            del places[oldest.name, index]
            if not places:
                del self._places[Digest(part)]
