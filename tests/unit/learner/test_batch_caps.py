"""Caps of a batch: never exceeded while others have ready groups, and never a reason to wait."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from p2prl.learner.intake.batch_caps import Contributor, choose_batch, newcomer_places

ready_groups = st.lists(st.tuples(st.integers(0, 14), st.booleans()), max_size=60).map(
    # Whether an identity is known is a property of the identity.
    lambda pairs: [Contributor(bytes([number, known]), known) for number, known in pairs]
)


def fills(sizes: Counter[bytes], level: int) -> int:
    """Groups there are with at most `level` of each identity."""
    return sum(min(size, level) for size in sizes.values())


@given(ready_groups, st.integers(0, 60), st.integers(0, 500))
def test_a_batch_keeps_the_caps_as_far_as_others_can_fill_it_and_is_always_full(
    ready: list[Contributor], count: int, step: int
) -> None:
    count = min(count, len(ready))
    places = newcomer_places(step, count)
    chosen = choose_batch(ready, count, newcomers=places)
    assert len(set(chosen)) == count, "never waits"
    assert chosen == sorted(chosen)
    known = sum(each.is_known for each in ready)
    newcomers = sum(not ready[index].is_known for index in chosen)
    assert newcomers <= max(places, count - known), "newcomers have only the places that known peers cannot fill"
    assert newcomers >= min(places, len(ready) - known), "and their own"
    tenth = max(1, count // 10)
    for is_known in (True, False):
        all_of = Counter(each.identity for each in ready if each.is_known is is_known)
        taken = Counter(ready[index].identity for index in chosen if ready[index].is_known is is_known)
        most = max(taken.values(), default=0)
        assert most <= tenth or fills(all_of, most - 1) < taken.total(), "above the cap only if all others have run out"


@given(ready_groups, st.integers(1, 60))
def test_of_one_identity_the_oldest_come_first(ready: list[Contributor], count: int) -> None:
    count = min(count, len(ready))
    chosen = set(choose_batch(ready, count, newcomers=2))
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
        for index in choose_batch(sybils + honest, 16, newcomers=newcomer_places(step, 16))
    )
    assert taken[False] == 0.15 * taken.total()


def test_alone_a_peer_has_the_whole_batch_and_three_have_thirds() -> None:
    one = [Contributor(b"a", is_known=True)] * 9
    assert choose_batch(one, 6, newcomers=1) == [0, 1, 2, 3, 4, 5]
    three = one + [Contributor(b"b", is_known=True)] * 9 + [Contributor(b"c", is_known=True)] * 9
    assert Counter(three[index].identity for index in choose_batch(three, 9, newcomers=1)) == dict.fromkeys(
        (b"a", b"b", b"c"), 3
    )
