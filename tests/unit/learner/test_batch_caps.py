"""Caps of a batch: never exceeded while others have ready groups, and never a reason to wait."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.learner.intake.batch_caps import BatchChoice, Contributor, FairTurns, newcomer_places

ready_groups = st.lists(st.tuples(st.integers(0, 14), st.booleans()), max_size=60).map(
    # What standing an identity has is a property of the identity.
    lambda pairs: [
        Contributor(bytes([number, known]), known, is_proven=known or number % 3 > 0) for number, known in pairs
    ]
)


def class_of(each: Contributor) -> int:
    """0 for known identities, 1 for newcomers, 2 for those that are not proven."""
    return 2 - each.is_proven - each.is_known


def choose(ready: list[Contributor], count: int, *, step: int) -> list[int]:
    """The first batch of a run."""
    return BatchChoice().choose(ready, count, step=step)


def fills(sizes: Counter[bytes], *, above: int, count: int) -> int:
    """Groups there are with at most `above` more of each identity than its cap in a first batch."""
    return sum(min(size, max(1, count // 10) + above) for size in sizes.values())


@given(ready_groups, st.integers(0, 60), st.integers(0, 500))
def test_a_batch_keeps_the_caps_as_far_as_others_can_fill_it_and_is_always_full(
    ready: list[Contributor], count: int, step: int
) -> None:
    count = min(count, len(ready))
    chosen = choose(ready, count, step=step)
    assert len(set(chosen)) == count, "never waits"
    assert chosen == sorted(chosen)
    there = [sum(class_of(each) == of for each in ready) for of in range(3)]
    newcomers, others = (sum(class_of(ready[index]) == of for index in chosen) for of in (1, 2))
    assert newcomers <= max(newcomer_places(step, count), count - there[0]), "what known peers cannot fill is theirs"
    sizes = Counter(each.identity for each in ready if class_of(each) == 1)
    assert newcomers >= min(newcomer_places(step, count), fills(sizes, above=0, count=count)), "and their own"
    assert not others or others == count - there[0] - there[1], "nothing while others can fill the batch"
    for of in range(3):
        all_of = Counter(each.identity for each in ready if class_of(each) == of)
        taken = Counter(ready[index].identity for index in chosen if class_of(ready[index]) == of)
        above = max(taken.values(), default=0) - max(1, count // 10)
        assert above <= 0 or fills(all_of, above=above - 1, count=count) < taken.total(), "others ran out"


def test_a_newcomer_alone_has_a_tenth_while_known_peers_can_fill_the_rest() -> None:
    ready = [Contributor(b"new", is_known=False)] * 16
    ready += [Contributor(bytes([number]), is_known=True) for number in range(10)] * 2
    taken = Counter(ready[index].identity for step in range(100) for index in choose(ready, 16, step=step))
    assert taken[b"new"] == 0.1 * taken.total()


@pytest.mark.parametrize(("people", "most"), [(10, 0.1), (3, 0.26)])
def test_one_that_is_never_short_has_no_more_than_others_have_on_average(people: int, most: float) -> None:
    rng = random.Random(1)
    choice, trained = BatchChoice(), Counter[bytes]()
    waiting = Counter({bytes([number]): 8 for number in range(people)})
    for step in range(400):
        for honest in waiting:
            waiting[honest] += rng.choice((0, 0, 0, 4 * 17 // people))
        ready = [Contributor(b"cheat", is_known=True)] * 32
        ready += [Contributor(honest, is_known=True) for honest, groups in waiting.items() for _ in range(groups)]
        taken = Counter(ready[index].identity for index in choice.choose(ready, 16, step=step))
        waiting.subtract({who: groups for who, groups in taken.items() if who != b"cheat"})
        trained += taken
    assert 0.8 * most <= trained[b"cheat"] / trained.total() <= most


def test_an_absence_earns_nothing() -> None:
    turns = FairTurns()
    here = [Contributor(b"a", is_known=True), Contributor(b"b", is_known=True)] * 50
    assert turns.choose(here, range(100), 100) == list(range(100))
    both = [Contributor(b"a", is_known=True)] * 9 + [Contributor(b"new", is_known=True)] * 9
    assert turns.choose(both, range(18), 6) in ([9, 0, 10, 1, 11, 2], [0, 9, 1, 10, 2, 11])


def test_the_identities_whose_turns_are_remembered_are_bounded() -> None:
    turns = FairTurns()
    crowd = [Contributor(number.to_bytes(4, "little"), is_known=False) for number in range(5_000)]
    turns.choose(crowd, range(5_000), 5_000)
    again = turns.choose(crowd, range(5_000), 1_000)
    assert again[:904] == list(range(904)), "those forgotten have the present turn"
    assert again[904:] == list(range(904, 1_000))


@given(ready_groups, st.integers(1, 60))
def test_of_one_identity_the_oldest_come_first(ready: list[Contributor], count: int) -> None:
    count = min(count, len(ready))
    chosen = set(choose(ready, count, step=3))
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
        (sybils + honest)[index].is_known for step in range(50) for index in choose(sybils + honest, 16, step=step)
    )
    assert taken[False] == 0.15 * taken.total()


def test_alone_a_peer_has_the_whole_batch_and_three_have_thirds() -> None:
    one = [Contributor(b"a", is_known=True)] * 9
    assert choose(one, 6, step=0) == [0, 1, 2, 3, 4, 5]
    three = one + [Contributor(b"b", is_known=True)] * 9 + [Contributor(b"c", is_known=True)] * 9
    assert Counter(three[index].identity for index in choose(three, 9, step=0)) == dict.fromkeys((b"a", b"b", b"c"), 3)
