"""Download of one policy version: its route, and how far along it is. Pure.

A version is downloaded as a route of patches or as full weights. A route needs its manifests first, then all patches
at once, then the owner's report that they decoded; the weights' chunks are then on disk and only have to be verified.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from p2prl.protocol.digests import Digest
from p2prl.protocol.manifests import NO_BASE, BlobRef
from p2prl.protocol.policy_head import PatchEdge
from p2prl.swarm.events import PatchesReady
from p2prl.swarm.policies.catalog import PolicyCatalog, PolicyVersion
from p2prl.swarm.policies.routing import Route, RoutePlan


@dataclass(slots=True)
class DownloadStats:
    """Download volume of the versions that completed."""

    patch_bytes: int = 0
    """Bytes of the patches versions were rebuilt from."""
    full_bytes: int = 0
    """Bytes of versions downloaded as full weights."""
    version_bytes: int = 0
    """Bytes all completed versions would have cost as full weights."""
    saved_bytes: int = 0
    """Extra bytes they would have cost without the owner's local base."""

    def add(self, size_bytes: int, decoded_bytes: int | None, saved_bytes: int) -> None:
        """Count a completed version of this size, rebuilt from patches of `decoded_bytes`, or None for none."""
        self.patch_bytes += decoded_bytes or 0
        self.full_bytes += size_bytes if decoded_bytes is None else 0
        self.version_bytes += size_bytes
        self.saved_bytes += saved_bytes


@dataclass(slots=True)
class VersionDownload:
    """A version being downloaded."""

    target: PolicyVersion
    since: float
    """When the present route was chosen."""
    route: Route = ()
    """Patches that lead to it; empty while its full weights are downloaded."""
    patches: tuple[BlobRef, ...] = ()
    """The patches' blobs, once all manifests of the route have arrived."""
    received: set[Digest] = field(default_factory=set)
    """Roots of the patches that have arrived and are verified."""
    rebuilding: bool = False
    """Whether the owner has been asked to decode them."""
    decoded_bytes: int | None = None
    """Bytes of the patches the weights were rebuilt from, 0 if they were here; None if they are downloaded."""
    from_local_base: bool = False
    """Whether the route starts from the owner's local base, or is that base alone."""
    saved_bytes: int = 0
    """Extra bytes the cheapest route would cost without that base."""
    stands_in: bool = False
    """Whether it stands in for a newer version, which no linked peers had all of."""

    @property
    def base(self) -> int:
        """Version the route starts from; `NO_BASE` for a keyframe or without a route."""
        return self.route[0].base if self.route else NO_BASE

    @property
    def route_bytes(self) -> int:
        """Size of the route's patches together, as the learner's head states it."""
        return sum(patch.size_bytes for patch in self.route)

    @property
    def patch_bytes(self) -> int:
        """Size of the route's patches together."""
        return sum(ref.size_bytes for ref in self.patches)

    @property
    def awaits_manifests(self) -> bool:
        """Whether manifests of the route are still missing."""
        return bool(self.route) and not self.patches

    @property
    def all_received(self) -> bool:
        """Whether every patch of the route has arrived."""
        return bool(self.patches) and {ref.root for ref in self.patches} <= self.received

    @property
    def gives_way(self) -> bool:
        """Whether it may be dropped for the version it stands in for."""
        return self.stands_in and not self.rebuilding

    def blobs(self) -> tuple[BlobRef, ...]:
        """The blobs being downloaded."""
        if self.route:
            return self.patches
        return (self.target.manifest.weights,)

    def needed(self, catalog: PolicyCatalog) -> set[Digest]:
        """The versions it needs: its own, those along the route, and the one the route starts from."""
        base = catalog.get(self.base)
        return {self.target.digest, *(Digest(patch.manifest) for patch in self.route), *([base.digest] if base else ())}

    def rebuild_request(
        self, catalog: PolicyCatalog, dtype: str, local_base: Digest | None, held: tuple[Digest, ...]
    ) -> PatchesReady:
        """What the owner needs to decode the patches.

        `local_base`: digest of the owner's local base; `held`: roots of the weights on disk and of those being decoded.
        """
        base = catalog.get(self.base)
        root = None if base is None else base.manifest.weights.root
        start = local_base if self.from_local_base else root
        number = NO_BASE if self.from_local_base else self.base
        roots = tuple(ref.root for ref in self.patches)
        return PatchesReady(self.target.manifest, self.target.digest, dtype, start, roots, number, held)

    def missing_manifests(self, catalog: PolicyCatalog) -> list[Digest]:
        """Manifests of the route that are still missing."""
        names = dict.fromkeys(Digest(patch.manifest) for patch in self.route)
        return [name for name in names if catalog.named(name) is None]

    def use_full_weights(self, now: float) -> None:
        """Download the weights' own chunks from now on."""
        self.since, self.route, self.patches, self.rebuilding = now, (), (), False
        self.received.clear()

    def use_decoded(self, now: float) -> None:
        """The patches are decoded into the weights, whose chunks are all there."""
        self.decoded_bytes = self.patch_bytes
        self.use_full_weights(now)

    def use(self, plan: RoutePlan, now: float, *, is_here: bool) -> None:
        """Follow this plan from now on. `is_here` tells whether the weights are, so that nothing is downloaded."""
        self.use_full_weights(now)
        self.route, self.decoded_bytes = plan.route or (), 0 if is_here else None
        self.from_local_base, self.saved_bytes = plan.from_local_base, plan.saved_bytes


def patch_blobs(
    route: Route, catalog: PolicyCatalog, *, base_digest: Digest | None = None
) -> tuple[BlobRef, ...] | PatchEdge:
    """The patch blobs of a route whose manifests are all known, or the first patch that its manifest contradicts.

    `base_digest` is the digest of the weights the route starts from when those are the owner's local base.
    """
    blobs: list[BlobRef] = []
    for edge in route:
        policy = catalog.named(Digest(edge.manifest))
        patch = None if policy is None else policy.manifest.patch_from(edge.base)
        base = catalog.get(edge.base)
        if policy is None or patch is None or policy.manifest.version != edge.version:
            return edge
        if base is not None and base.manifest.weights_digest != patch.base_digest:
            return edge
        if base_digest is not None and not blobs and base_digest != patch.base_digest:
            return edge
        if patch.blob.size_bytes != edge.size_bytes:  # a route is chosen by the sizes in the head
            return edge
        blobs.append(patch.blob)
    return tuple(blobs)
