"""One version being fetched: by which way, and how far along it. Pure.

A way is a route of patches, or the weights whole. Of a route the manifests are needed first, then all patches at once,
then the owner's word that they decoded; the weights' own chunks are then on disk and only have to be taken up.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from p2prl.protocol.digests import Digest
from p2prl.protocol.manifests import NO_BASE, BlobRef
from p2prl.swarm.policies.catalog import PolicyCatalog, PolicyVersion
from p2prl.swarm.policies.cheapest_route import Route, RouteStep
from p2prl.swarm.policies.route_planner import RoutePlan


@dataclass(slots=True)
class VersionDownload:
    """A version on its way here."""

    goal: PolicyVersion
    since: float
    """When the present way was chosen."""
    route: Route = ()
    """Patches that lead to it; empty while it is fetched whole."""
    patches: tuple[BlobRef, ...] = ()
    """The patches' streams, once the manifests of the whole route are here."""
    arrived: set[Digest] = field(default_factory=set)
    """Roots of the streams that are here and verified."""
    rebuilding: bool = False
    """The owner has been asked to decode them."""
    decoded_bytes: int | None = None
    """Bytes of the streams its weights were rebuilt from; None while they were not."""
    from_own: bool = False
    """Whether the way starts from the owner's base (`LocalBase`), or is that alone."""
    spared_bytes: int = 0
    """What the cheapest way would cost more without that base."""

    @property
    def base(self) -> int:
        """Version the route starts from; `NO_BASE` when it starts from none, or there is no route."""
        return self.route[0].base if self.route else NO_BASE

    @property
    def awaits_manifests(self) -> bool:
        """Whether manifests of the route are still to come."""
        return bool(self.route) and not self.patches

    @property
    def all_arrived(self) -> bool:
        """Whether every stream of the route is here."""
        return bool(self.patches) and {ref.root for ref in self.patches} <= self.arrived

    def fetched(self) -> tuple[BlobRef, ...]:
        """The blobs being fetched."""
        if self.route:
            return self.patches
        return (self.goal.manifest.weights,)

    def missing(self, book: PolicyCatalog) -> list[Digest]:
        """Manifests of the route that are not here."""
        return [name for name in dict.fromkeys(way.manifest for way in self.route) if book.named(name) is None]

    def take_whole(self, now: float) -> None:
        """Fetch the weights' own chunks from now on."""
        self.since, self.route, self.patches, self.rebuilding = now, (), (), False
        self.arrived.clear()

    def take(self, plan: RoutePlan, now: float) -> None:
        """Go this way from now on."""
        self.take_whole(now)
        self.route, self.decoded_bytes = plan.route or (), None
        self.from_own, self.spared_bytes = plan.from_own, plan.spared_bytes


def streams_of(route: Route, book: PolicyCatalog, *, own: Digest | None = None) -> tuple[BlobRef, ...] | RouteStep:
    """The streams of a route whose manifests are all known, or the first way that its manifest does not bear out.

    `own` is the digest of the words it starts from where those are the owner's.
    """
    streams: list[BlobRef] = []
    for way in route:
        known = book.named(way.manifest)
        patch = None if known is None else known.manifest.patch_from(way.base)
        base = book.get(way.base)
        if known is None or patch is None or known.manifest.version != way.version:
            return way
        if base is not None and base.manifest.weights_digest != patch.base_digest:
            return way
        if own is not None and not streams and own != patch.base_digest:
            return way
        streams.append(patch.blob)
    return tuple(streams)
