"""Marks: each round number is dated once, by the receipt that passed it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from p2prl.scoreboard.ledger.marks import GROUPS, OWN_GROUPS, PEOPLE, TOKENS, RunMarksSoFar, own_marks, passed


def test_round_numbers_are_powers_of_ten_and_quarters_for_people() -> None:
    assert [str(mark) for mark in GROUPS] == ["1" + "0" * zeros for zeros in range(1, 13)]
    assert [str(mark) for mark in TOKENS] == ["1" + "0" * zeros for zeros in range(5, 16)]
    assert [str(mark) for mark in OWN_GROUPS] == ["1" + "0" * zeros for zeros in range(2, 7)]
    assert {str(mark).rstrip("0") for mark in PEOPLE} == {"1", "25", "5"}
    assert list(PEOPLE) == sorted(set(PEOPLE))
    assert (min(PEOPLE), max(PEOPLE), len(PEOPLE)) == (10, 100_000, 13)


def test_the_first_group_and_each_tenfold_are_dated_once() -> None:
    run = RunMarksSoFar()
    for number in range(1, 1_001):
        run.credited(100, 5_000 + number)
    assert run.state() == {
        ("groups", 1): 5_001,
        ("groups", 10): 5_010,
        ("groups", 100): 5_100,
        ("groups", 1_000): 6_000,
        ("tokens", 100_000): 6_000,
    }


def test_of_several_marks_at_once_the_highest_is_dated() -> None:
    run = RunMarksSoFar()
    run.credited(20_000_000, 7)
    assert run.state() == {("groups", 1): 7, ("tokens", 10_000_000): 7}


def test_people_that_turn_out_to_be_one_pass_no_mark_again() -> None:
    run = RunMarksSoFar()
    for number, at in ((9, 1), (10, 2), (9, 3), (10, 4), (24, 5), (30, 6)):
        run.people(number, at)
    assert run.state() == {("people", 10): 2, ("people", 25): 6}


@given(st.lists(st.integers(0, 10**9), max_size=1_200))
def test_a_contributors_marks_are_dated_by_the_group_of_that_number(times: list[int]) -> None:
    found = own_marks(times)
    assert set(found) == {mark for mark in OWN_GROUPS if mark <= len(times)}
    for mark, at in found.items():
        assert sum(time < at for time in times) < mark <= sum(time <= at for time in times)


def test_a_mark_is_passed_when_it_is_reached() -> None:
    marks = (10, 20, 30)
    assert [passed(marks, before, after) for before, after in ((9, 10), (10, 11), (9, 9), (9, 25), (0, 99))] == [
        [10], [], [], [20], [30],
    ]  # fmt: skip
