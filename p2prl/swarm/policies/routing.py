"""Cheapest patch route from the versions on disk to a target version, avoiding patches that failed.

Versions are nodes of a graph and patches its edges, weighted in bytes. Most peers take the one patch from the version
before; a peer that was offline takes patches over 4, 16 or 64 versions, and a newcomer a keyframe or the full weights.

A run often starts from a public model. A peer that has it on disk, or gets it faster from a hub than from volunteers,
holds the run's starting weights, and patches lead on from there. Weights are identified by the digest of all of them,
which manifests sign for every version and every patch's base: where they came from does not matter. Pure.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from p2prl.protocol.digests import Digest
from p2prl.protocol.manifests import NO_BASE, PolicyManifest
from p2prl.protocol.policy_head import PatchEdge
from p2prl.swarm.policies.catalog import PolicyCatalog

FIRST_VERSION = 0
"""The run's starting weights: the version a user means by naming a base model."""


class LocalBase:
    """The owner's weights, while routes may start from them."""

    def __init__(self, *, awaited: bool) -> None:
        self.awaited = awaited
        """Whether the owner is still looking. Downloads wait: a route from the base may cost a hundredth of the full
        weights."""
        self.digest: Digest | None = None
        """Digest of all the weights; None when there are none, or no longer."""
        self.corrupt = False
        """Whether a version could not be rebuilt from them: no further route starts there."""

    def replace(self, digest: Digest | None) -> None:
        """Set the weights the owner found, or none."""
        self.awaited, self.digest, self.corrupt = False, digest, False

    def versions(self, catalog: PolicyCatalog) -> set[int]:
        """Versions the weights may be, as starts of a route.

        Version 0 is among them until a signature contradicts: a head lists patches by version number only, and the
        manifest of a patch from version 0, which signs the digest of its base, is downloaded before the patch.
        """
        if self.digest is None or self.corrupt:
            return set()
        signed = set(_signed_digests(catalog))
        proven = {version for version, digest in signed if digest == self.digest}
        return proven if self._contradicts(signed) else proven | {FIRST_VERSION}

    def matches_run(self, catalog: PolicyCatalog) -> bool | None:
        """Whether the learner signed these weights as some version; None while no known signature tells."""
        signed = set(_signed_digests(catalog))
        if any(digest == self.digest for _, digest in signed):
            return True
        return False if self._contradicts(signed) else None

    def _contradicts(self, signed: set[tuple[int, bytes]]) -> bool:
        return any(version == FIRST_VERSION and digest != self.digest for version, digest in signed)


def _signed_digests(catalog: PolicyCatalog) -> Iterator[tuple[int, bytes]]:
    """(version, weights digest) pairs that known manifests sign, for versions and for the bases of patches."""
    for policy in catalog.newest_first():
        yield policy.manifest.version, policy.manifest.weights_digest
        for patch in policy.manifest.patches:
            if patch.base != NO_BASE:
                yield patch.base, patch.base_digest


Route = tuple[PatchEdge, ...]
"""Patches in the order they are applied; the first starts from a version on disk, or from nothing (a keyframe)."""

_LONGEST_SPAN = 64
"""Versions the longest regular patch leads over; patches from version 0 may be longer."""


def cheapest_route(
    patches: Iterable[PatchEdge], *, held: Collection[int], target: int, full_bytes: int
) -> Route | None:
    """The route of fewest bytes to `target`; among equals the fewest patches, then the lowest bases.

    None when the full weights (`full_bytes`) cost no more: they need no decoding. Empty when `target` is held.
    Dijkstra's algorithm, with every held version at distance 0.
    """
    patches_from: dict[int, list[PatchEdge]] = defaultdict(list)
    for patch in patches:
        patches_from[patch.base].append(patch)
    costs = dict.fromkeys((NO_BASE, *held), (0, 0))
    last_patch: dict[int, PatchEdge] = {}
    queue = [(0, 0, version) for version in sorted(costs)]
    heapq.heapify(queue)
    while queue:
        spent, steps, version = heapq.heappop(queue)
        if version == target:
            break
        if (spent, steps) > costs[version]:
            continue
        for patch in patches_from[version]:
            cost = (spent + patch.size_bytes, steps + 1)
            if patch.version not in costs or cost < costs[patch.version]:
                costs[patch.version] = cost
                last_patch[patch.version] = patch
                heapq.heappush(queue, (*cost, patch.version))
    if target not in costs or costs[target][0] >= full_bytes:
        return None
    route: list[PatchEdge] = []
    version = target
    while costs[version] != (0, 0):
        route.append(last_patch[version])
        version = last_patch[version].base
    return tuple(reversed(route))


@dataclass(frozen=True, kw_only=True, slots=True)
class RoutePlan:
    """The planned download of a version."""

    route: Route | None
    """The patches; empty when the local base is the version itself, None for its full weights."""
    from_local_base: bool = False
    """Whether it starts from the owner's local base."""
    saved_bytes: int = 0
    """Extra bytes the cheapest download would cost without that base."""


class RoutePlanner:
    """Plans routes over the patches of a catalog."""

    def __init__(self, catalog: PolicyCatalog, base: LocalBase, *, rebuilds: bool) -> None:
        """`rebuilds` is whether the owner decodes patches at all."""
        self._catalog = catalog
        self.base = base
        self._rebuilds = rebuilds
        self._failed: set[tuple[int, int]] = set()

    def plan(self, target: PolicyManifest, held: Collection[int]) -> RoutePlan:
        """The route of fewest bytes from the held versions or the local base, over patches that have not failed."""
        if not self._rebuilds:
            return RoutePlan(route=None)
        without_base = self._cheapest(target, held)
        base_versions = self.base.versions(self._catalog).difference(held)
        route = self._cheapest(target, base_versions.union(held)) if base_versions else without_base
        if route is None or (route[0].base if route else target.version) not in base_versions:
            return RoutePlan(route=route)
        saved_bytes = _cost(target, without_base) - _cost(target, route)
        return RoutePlan(route=route, from_local_base=True, saved_bytes=saved_bytes)

    def avoid(self, patches: Iterable[PatchEdge]) -> None:
        """Plan no further routes over these patches: they failed."""
        self._failed.update((patch.version, patch.base) for patch in patches)

    def forget_before(self, version: int) -> None:
        """Forget failures of patches too old for any route to a version from `version` on."""
        self._failed = {failed for failed in self._failed if failed[0] > version - _LONGEST_SPAN}

    def _cheapest(self, target: PolicyManifest, held: Collection[int]) -> Route | None:
        return cheapest_route(
            [patch for patch in self._catalog.patches() if (patch.version, patch.base) not in self._failed],
            held=held,
            target=target.version,
            full_bytes=target.weights.size_bytes,
        )


def _cost(target: PolicyManifest, route: Route | None) -> int:
    return target.weights.size_bytes if route is None else sum(patch.size_bytes for patch in route)
