"""Caps of a batch: never exceeded while others have ready groups, and never a reason to wait."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from p2prl.learner.intake.batch_caps import Contributor, choose_batch, identity_places, newcomer_places

ready_groups = st.lists(st.tuples(st.integers(0, 14), st.booleans()), max_size=60).map(
    # What standing an identity has is a property of the identity.
    lambda pairs: [
        Contributor(bytes([number, known]), known, is_proven=known or number % 3 > 0) for number, known in pairs
    ]
)


def class_of(each: Contributor) -> int:
    """0 for known identities, 1 for newcomers, 2 for those that are not proven."""
    return 2 - each.is_proven - each.is_known


def fills(sizes: Counter[bytes], *, above: int, step: int, count: int) -> int:
    """Groups there are with at most `above` more of each identity than its cap."""
    return sum(min(size, identity_places(identity, step, count) + above) for identity, size in sizes.items())


@given(ready_groups, st.integers(0, 60), st.integers(0, 500))
def test_a_batch_keeps_the_caps_as_far_as_others_can_fill_it_and_is_always_full(
    ready: list[Contributor], count: int, step: int
) -> None:
    count = min(count, len(ready))
    chosen = choose_batch(ready, count, step=step)
    assert len(set(chosen)) == count, "never waits"
    assert chosen == sorted(chosen)
    there = [sum(class_of(each) == of for each in ready) for of in range(3)]
    newcomers, others = (sum(class_of(ready[index]) == of for index in chosen) for of in (1, 2))
    assert newcomers <= max(newcomer_places(step, count), count - there[0]), "what known peers cannot fill is theirs"
    sizes = Counter(each.identity for each in ready if class_of(each) == 1)
    assert newcomers >= min(newcomer_places(step, count), fills(sizes, above=0, step=step, count=count)), (
        "and their own"
    )
    assert not others or others == count - there[0] - there[1], "nothing while others can fill the batch"
    for of in range(3):
        all_of = Counter(each.identity for each in ready if class_of(each) == of)
        taken = Counter(ready[index].identity for index in chosen if class_of(ready[index]) == of)
        above = max((n - identity_places(identity, step, count) for identity, n in taken.items()), default=0)
        assert above <= 0 or fills(all_of, above=above - 1, step=step, count=count) < taken.total(), "others ran out"


@given(st.binary(min_size=32, max_size=32), st.integers(10, 64), st.integers(0, 1000), st.integers(1, 200))
def test_places_of_an_identity_add_up_to_a_tenth(identity: bytes, count: int, first: int, updates: int) -> None:
    places = [identity_places(identity, step, count) for step in range(first, first + updates)]
    assert abs(sum(places) - 0.1 * count * updates) < 1.0
    assert max(places) - min(places) <= 1


def test_ten_identities_fill_a_batch_that_is_no_multiple_of_ten() -> None:
    rng = random.Random(1)
    honest = [rng.randbytes(32) for _ in range(10)]
    ready = [Contributor(who, is_known=True) for who in (rng.randbytes(32), *honest) for _ in range(4)]
    cheat = ready[0].identity
    trained = Counter(ready[index].identity for step in range(200) for index in choose_batch(ready, 16, step=step))
    assert trained[cheat] <= 0.1 * trained.total()


@given(ready_groups, st.integers(1, 60))
def test_of_one_identity_the_oldest_come_first(ready: list[Contributor], count: int) -> None:
    count = min(count, len(ready))
    chosen = set(choose_batch(ready, count, step=3))
    for identity in {each.identity for each in ready}:
        mine = [index in chosen for index, each in enumerate(ready) if each.identity == identity]
        assert mine == sorted(mine, reverse=True)


@given(st.integers(1, 64), st.integers(0, 1000), st.integers(1, 200))
def test_places_of_newcomers_add_up_to_their_share(count: int, first: int, updates: int) -> None:
    places = [newcomer_places(step, count) for step in range(first, first + updates)]
    assert abs(sum(places) - 0.15 * count * updates) < 1.0
    assert max(places) <= 0.15 * count + 1


def test_a_hundred_sybils_move_training_no_further_than_their_places() -> None:
    honest = [Contributor(bytes([number]), is_known=True) for number in range(12)] * 2
    sybils = [Contributor(b"sybil" + bytes([number]), is_known=False) for number in range(100)]
    taken = Counter(
        (sybils + honest)[index].is_known
        for step in range(50)
        for index in choose_batch(sybils + honest, 16, step=step)
    )
    assert taken[False] == 0.15 * taken.total()


def test_alone_a_peer_has_the_whole_batch_and_three_have_thirds() -> None:
    one = [Contributor(b"a", is_known=True)] * 9
    assert choose_batch(one, 6, step=0) == [0, 1, 2, 3, 4, 5]
    three = one + [Contributor(b"b", is_known=True)] * 9 + [Contributor(b"c", is_known=True)] * 9
    assert Counter(three[index].identity for index in choose_batch(three, 9, step=0)) == dict.fromkeys(
        (b"a", b"b", b"c"), 3
    )
