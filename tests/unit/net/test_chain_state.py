"""State of a weight chain against brute force: shortest routes, and versions that stay reachable in any history."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.errors import IntegrityError
from p2prl.net.storage.chain_state import ChainState, Inverse, read_state, write_state
from p2prl.patches.words import BF16
from p2prl.protocol.digests import Digest

ROOT = Digest(bytes(32))
SPANS = (1, 4, 16)


def chain(at: int, *inverses: tuple[int, int]) -> ChainState:
    """Versions 0 to `at`, and patches of ten bytes."""
    patches = frozenset(Inverse(newer, older, 10) for newer, older in inverses)
    return ChainState(word_type=BF16, words=10, at=at, roots=dict.fromkeys(range(at + 1), ROOT), inverses=patches)


def ways(state: ChainState, start: int, version: int) -> Iterator[tuple[Inverse, ...]]:
    """Every way there is, by trying them all."""
    if start == version:
        yield ()
    for inverse in state.inverses:
        if inverse.newer == start:
            yield from ((inverse, *rest) for rest in ways(state, inverse.older, version))


def test_a_route_is_found_where_spans_do_not_nest() -> None:
    """The longest step from 12 that does not pass 0 leads into a dead end: 11 has the only way."""
    state = chain(12, (12, 11), (12, 8), (8, 7), (11, 0))
    found = state.route({12}, 0)
    assert found is not None
    assert [(step.newer, step.older) for step in found[1]] == [(12, 11), (11, 0)]
    assert state.route({8}, 0) is None
    assert state.route({8, 12}, 0) == found
    assert state.route({9}, 9) == (9, ())
    assert state.route(set(), 9) is None
    assert state.route({3}, 4) is None


@given(seed=st.integers(0, 1 << 32))
def test_routes_are_the_shortest(seed: int) -> None:
    rng = random.Random(seed)
    pairs = [(newer, older) for newer in range(9) for older in range(newer) if rng.random() < 0.35]
    inverses = frozenset(Inverse(newer, older, rng.randint(1, 3)) for newer, older in pairs)
    state = replace(chain(8), inverses=inverses)
    for version in range(9):
        starts = {start for start in range(9) if rng.random() < 0.4}
        all_ways = [(start, way) for start in starts for way in ways(state, start, version)]
        found = state.route(starts, version)
        if not all_ways:
            assert found is None
            continue
        assert found is not None
        assert found in all_ways
        assert cost(found[1]) == min(cost(way) for _, way in all_ways)
    for start in range(9):
        assert state.reachable(start) == {version for version in range(9) if list(ways(state, start, version))}


def cost(way: tuple[Inverse, ...]) -> tuple[int, int]:
    return len(way), sum(step.size_bytes for step in way)


@given(seed=st.integers(0, 1 << 32))
def test_what_is_held_can_be_reached_in_any_history(seed: int) -> None:
    """Versions with patches to any older ones, windows of any length, crashes: nothing but the window is forgotten."""
    rng = random.Random(seed)
    state, window, held = chain(0), rng.randint(1, 20), {0}
    for version in range(1, rng.randint(2, 40)):
        olders = {version - 1} | {version - span for span in SPANS if version % span == 0}
        olders |= {0} if rng.random() < 0.2 else set()
        olders |= {rng.choice(sorted(held))} if rng.random() < 0.2 else set()
        made = frozenset(Inverse(version, older, rng.randint(1, 9)) for older in olders & held)
        staged = state.with_target(version, ROOT, made)
        assert read_state(write_state(staged)) == staged
        if rng.random() < 0.2:
            assert staged.given_up() == state
        state = staged.arrived()
        oldest = max(version - window, rng.choice([0, version - window, version - 1]))
        held = {each for each in {*held, version} if each >= oldest or each == 0}
        state = state.forgetting_before(oldest, besides=0)
        assert set(state.roots) == held
        for each in held:
            assert state.route({state.at}, each) is not None, (version, each)
        ends = {end for inverse in state.inverses for end in (inverse.newer, inverse.older)}
        assert ends <= state.reachable(state.at), "patches that lead nowhere are forgotten"
        assert read_state(write_state(state)) == state


def test_forgetting() -> None:
    nested = [(v, v - span) for v in range(21) for span in SPANS if v % span == 0 and v >= span]
    state = chain(20, *nested)
    found = state.route({20}, 0)
    assert found is not None
    assert [(step.newer, step.older) for step in found[1]] == [(20, 16), (16, 0)]
    kept = state.forgetting_before(10)
    assert kept.route({20}, 9) is None
    assert sorted(kept.roots) == list(range(10, 21))
    assert kept.forgetting_before(99).roots.keys() == {20}
    with_first = state.forgetting_before(19, besides=0)
    assert set(with_first.roots) == {0, 19, 20}
    assert with_first.route({20}, 0) == found
    assert len(with_first.inverses) == 3, "20 to 19, and the way back to 0"
    assert with_first.forgetting_before(20, besides=0).inverses == set(found[1])
    assert with_first.forgetting_before(20, besides=5) == with_first.forgetting_before(20)
    assert kept.forgetting_before(19, besides=0) == kept.forgetting_before(19), "it was forgotten before"


def test_a_lost_patch_costs_the_versions_behind_it_alone() -> None:
    state = chain(5, (5, 4), (4, 3), (4, 0), (3, 2), (2, 1))
    left = state.with_inverses(state.inverses - {Inverse(3, 2, 10)})
    assert set(left.roots) == {5, 4, 3, 0}
    back = state.towards(3).arrived()
    assert (back.at, set(back.roots)) == (3, {3, 2, 1}), "only newer versions led to 0"


def test_states_that_are_none() -> None:
    good = write_state(chain(1, (1, 0)))
    assert read_state(good).at == 1
    bad: list[Any] = [b"", b"{}", b"[]", good.replace(b'"at": 1', b'"at": 2'), good.replace(b"chain/1", b"chain/2")]
    bad += [good.replace(b"00", b"", 1), good.replace(b'"target": null', b'"target": 7'), write_state(chain(1))]
    for data in bad:
        with pytest.raises(IntegrityError):
            read_state(data)
