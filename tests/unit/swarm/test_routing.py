"""Cheapest patch route, against brute force."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from p2prl.protocol.digests import Digest
from p2prl.protocol.manifests import NO_BASE
from p2prl.protocol.policy_head import PatchEdge
from p2prl.swarm.policies.routing import Route, cheapest_route

NAME = Digest(bytes(32))


def patches_of(prices: dict[tuple[int, int], int]) -> list[PatchEdge]:
    return [PatchEdge(version, base, size, NAME) for (base, version), size in prices.items()]


def every_route(patches: list[PatchEdge], held: set[int], target: int) -> list[Route]:
    """All chains of patches that end at the target, by brute force."""
    found: list[Route] = [()] if target in held else []
    starts = held | {NO_BASE}
    for length in range(1, len(patches) + 1):
        for chain in itertools.permutations(patches, length):
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
def test_no_route_costs_less(edges: dict[tuple[int, int], int], held: set[int], target: int, full_bytes: int) -> None:
    patches = patches_of(edges)
    chosen = cheapest_route(patches, held=held, target=target, full_bytes=full_bytes)
    costs = [sum(patch.size_bytes for patch in route) for route in every_route(patches, held, target)]
    cheapest = min(costs, default=full_bytes)
    if chosen is None:
        assert cheapest >= full_bytes
        return
    assert chosen in every_route(patches, held, target)
    assert sum(patch.size_bytes for patch in chosen) == cheapest < full_bytes


def chain(newest: int, price: int = 100) -> list[PatchEdge]:
    """Patches as a learner makes them: from 1, 4, 16 and 64 back, a longer one cheaper than the chain it replaces."""
    return [
        PatchEdge(version, version - span, int(price * span**0.7), NAME)
        for version in range(1, newest + 1)
        for span in (1, 4, 16, 64)
        if version % span == 0
    ]


def test_long_patches_shorten_a_route() -> None:
    route = cheapest_route(chain(37), held={21}, target=37, full_bytes=10**6)
    assert route is not None
    assert [(patch.base, patch.version) for patch in route] == [
        (21, 22), (22, 23), (23, 24), (24, 28), (28, 32), (32, 36), (36, 37)
    ]  # fmt: skip
    direct = cheapest_route(chain(48), held={32}, target=48, full_bytes=10**6)
    assert direct is not None
    assert [patch.base for patch in direct] == [32]


def test_a_keyframe_when_cheaper_than_full_weights() -> None:
    patches = [*chain(20), PatchEdge(16, NO_BASE, 600, NAME)]
    route = cheapest_route(patches, held=(), target=20, full_bytes=1000)
    assert route is not None
    assert [patch.base for patch in route] == [NO_BASE, 16]
    assert cheapest_route(patches, held=(), target=20, full_bytes=800) is None, (
        "no route that costs more than the weights"
    )


def test_held_and_unreachable_targets() -> None:
    assert cheapest_route(chain(4), held={4, 2}, target=4, full_bytes=10) == ()
    assert cheapest_route([], held={3}, target=4, full_bytes=10) is None
