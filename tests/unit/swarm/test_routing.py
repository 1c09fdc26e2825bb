"""The cheapest way over patches, against trying every one."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from p2prl.protocol.digests import Digest
from p2prl.protocol.manifests import NO_BASE
from p2prl.protocol.policy_head import PatchEdge
from p2prl.swarm.policies.routing import Route, cheapest_route

NAME = Digest(bytes(32))


def ways_of(prices: dict[tuple[int, int], int]) -> list[PatchEdge]:
    return [PatchEdge(version, base, size, NAME) for (base, version), size in prices.items()]


def every_route(ways: list[PatchEdge], held: set[int], target: int) -> list[Route]:
    """All chains of patches that end at the target, by brute force."""
    found: list[Route] = [()] if target in held else []
    starts = held | {NO_BASE}
    for length in range(1, len(ways) + 1):
        for chain in itertools.permutations(ways, length):
            linked = all(one.version == two.base for one, two in itertools.pairwise(chain))
            if chain[0].base in starts and linked and chain[-1].version == target:
                found.append(chain)
    return found


prices = st.dictionaries(
    st.tuples(st.integers(-1, 4), st.integers(0, 5)).filter(lambda pair: pair[0] < pair[1]),
    st.integers(1, 30),
    max_size=6,
)


@given(prices, st.sets(st.integers(0, 4)), st.integers(0, 5), st.integers(1, 60))
def test_no_route_costs_less(edges: dict[tuple[int, int], int], held: set[int], target: int, whole_bytes: int) -> None:
    ways = ways_of(edges)
    chosen = cheapest_route(ways, held=held, target=target, full_bytes=whole_bytes)
    costs = [sum(way.size_bytes for way in route) for route in every_route(ways, held, target)]
    cheapest = min(costs, default=whole_bytes)
    if chosen is None:
        assert cheapest >= whole_bytes
        return
    assert chosen in every_route(ways, held, target)
    assert sum(way.size_bytes for way in chosen) == cheapest < whole_bytes


def chain(newest: int, price: int = 100) -> list[PatchEdge]:
    """Patches as a learner makes them: from 1, 4, 16 and 64 back, a longer one cheaper than the chain it spares."""
    return [
        PatchEdge(version, version - span, int(price * span**0.7), NAME)
        for version in range(1, newest + 1)
        for span in (1, 4, 16, 64)
        if version % span == 0
    ]


def test_sixteen_behind_takes_the_long_patches() -> None:
    route = cheapest_route(chain(37), held={21}, target=37, full_bytes=10**6)
    assert route is not None
    assert [(way.base, way.version) for way in route] == [
        (21, 22), (22, 23), (23, 24), (24, 28), (28, 32), (32, 36), (36, 37)
    ]  # fmt: skip
    direct = cheapest_route(chain(48), held={32}, target=48, full_bytes=10**6)
    assert direct is not None
    assert [way.base for way in direct] == [32]


def test_a_newcomer_takes_a_keyframe_where_that_is_cheaper_than_the_weights() -> None:
    ways = [*chain(20), PatchEdge(16, NO_BASE, 600, NAME)]
    route = cheapest_route(ways, held=(), target=20, full_bytes=1000)
    assert route is not None
    assert [way.base for way in route] == [NO_BASE, 16]
    assert cheapest_route(ways, held=(), target=20, full_bytes=800) is None, "no dearer way than the weights"


def test_what_is_held_needs_nothing_and_what_cannot_be_reached_is_fetched_whole() -> None:
    assert cheapest_route(chain(4), held={4, 2}, target=4, full_bytes=10) == ()
    assert cheapest_route([], held={3}, target=4, full_bytes=10) is None
