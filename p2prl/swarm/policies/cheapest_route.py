"""The cheapest way from what a peer holds to a version, over the patches there are. Pure.

Versions are places and patches are roads between them, priced in bytes. Most peers take the one road from the version
before; one that was away takes the long roads of 4, 16 or 64 versions, and a newcomer a keyframe or the weights whole.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from p2prl.protocol.digests import Digest
from p2prl.protocol.manifests import NO_BASE


@dataclass(frozen=True, slots=True)
class RouteStep:
    """One patch."""

    version: int
    base: int
    """Version it starts from; `NO_BASE` for a keyframe."""
    size_bytes: int
    manifest: Digest
    """Envelope digest of the manifest that lists it."""


Route = tuple[RouteStep, ...]
"""Patches in the order they are applied; the first starts from a version held, or from nothing."""


def cheapest_route(ways: Iterable[RouteStep], *, held: Collection[int], target: int, whole_bytes: int) -> Route | None:
    """The patches of the fewest bytes that lead to `target`; of equal ones the fewest patches, then the lowest bases.

    None when the weights whole (`whole_bytes`) cost no more: they need no decoding. Empty when `target` is held.
    Dijkstra's algorithm, every version held at distance nought.
    """
    roads: dict[int, list[RouteStep]] = defaultdict(list)
    for way in ways:
        roads[way.base].append(way)
    costs = dict.fromkeys((NO_BASE, *held), (0, 0))
    came_by: dict[int, RouteStep] = {}
    queue = [(0, 0, place) for place in sorted(costs)]
    heapq.heapify(queue)
    while queue:
        spent, steps, place = heapq.heappop(queue)
        if place == target:
            break
        if (spent, steps) > costs[place]:
            continue
        for way in roads[place]:
            cost = (spent + way.size_bytes, steps + 1)
            if way.version not in costs or cost < costs[way.version]:
                costs[way.version] = cost
                came_by[way.version] = way
                heapq.heappush(queue, (*cost, way.version))
    if target not in costs or costs[target][0] >= whole_bytes:
        return None
    route: list[RouteStep] = []
    place = target
    while costs[place] != (0, 0):
        route.append(came_by[place])
        place = came_by[place].base
    return tuple(reversed(route))
