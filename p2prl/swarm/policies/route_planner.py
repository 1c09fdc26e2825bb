"""Which way a version is fetched by: over the patches there are, from what is here, never by one that failed. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from p2prl.protocol.manifests import PolicyManifest
from p2prl.swarm.policies.catalog import PolicyCatalog
from p2prl.swarm.policies.cheapest_route import Route, RouteStep, cheapest_route
from p2prl.swarm.policies.local_base import LocalBase

_LONGEST_SPAN = 64
"""Versions the longest patch leads over, bridges aside."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RoutePlan:
    """A way to a version."""

    route: Route | None
    """The patches; empty when the owner's base is the version itself, None for its weights whole."""
    from_own: bool = False
    """Whether it starts from the owner's base."""
    spared_bytes: int = 0
    """What the cheapest way would cost more without that base."""


class RoutePlanner:
    """Chooses ways."""

    def __init__(self, book: PolicyCatalog, own: LocalBase, *, rebuilds: bool) -> None:
        """`rebuilds` says whether patches are of any use here."""
        self._book = book
        self._own = own
        self._rebuilds = rebuilds
        self._failed: set[tuple[int, int]] = set()

    def plan(self, goal: PolicyManifest, held: Collection[int]) -> RoutePlan:
        """The way of the fewest bytes from the versions held, or from the owner's base, that has not failed."""
        if not self._rebuilds:
            return RoutePlan(route=None)
        without = self._cheapest(goal, held)
        own = self._own.versions(self._book).difference(held)
        route = self._cheapest(goal, own.union(held)) if own else without
        if route is None or (route[0].base if route else goal.version) not in own:
            return RoutePlan(route=route)
        return RoutePlan(route=route, from_own=True, spared_bytes=_cost(goal, without) - _cost(goal, route))

    def avoid(self, ways: Iterable[RouteStep]) -> None:
        """These have failed."""
        self._failed.update((way.version, way.base) for way in ways)

    def forget_before(self, version: int) -> None:
        """Versions older than this are followed no more; a way may still lead through those a long patch back."""
        self._failed = {way for way in self._failed if way[0] > version - _LONGEST_SPAN}

    def _cheapest(self, goal: PolicyManifest, held: Collection[int]) -> Route | None:
        return cheapest_route(
            [way for way in self._book.ways() if (way.version, way.base) not in self._failed],
            held=held,
            target=goal.version,
            whole_bytes=goal.weights.size_bytes,
        )


def _cost(goal: PolicyManifest, route: Route | None) -> int:
    return goal.weights.size_bytes if route is None else sum(way.size_bytes for way in route)
