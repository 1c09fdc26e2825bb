"""Rotation of a machine over runs: what makes it go on, and that groups which wait on its disk come first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from p2prl import exit_codes
from p2prl.index.rotation import (
    DELISTED_S,
    EMPTY_S,
    FAILURES_TO_END,
    FORGOTTEN_S,
    LEAST_STAY_S,
    QUIET_S,
    VISIT_AGAIN_S,
    Rotation,
    Seen,
)
from p2prl.index.run_choice import Machine, Offer, Wishes
from p2prl.protocol.listing import OpenedListing, run_id
from p2prl_lab.testing.listed_runs import ListedRun, many_runs

A, B, C = many_runs(3)
HERE, NO_WISH = Machine(), Wishes()
WORKING = Seen(groups=1, waiting=0, in_reach=True)


def listed(**runs: dict[str, Any]) -> list[tuple[OpenedListing, int]]:
    named = {"a": A, "b": B, "c": C}
    return [(named[name].opened(**{"volunteers": 2, "missing": 2, **claims}), 1) for name, claims in runs.items()]


def serving(name: str = "a", now: float = 0.0) -> tuple[Rotation, list[Offer]]:
    """A machine that has served run `a` from `now` on, beside `b`."""
    rotation = Rotation(lambda: 0.0)
    offers = rotation.offers(listed(**{name: {}}), HERE, NO_WISH, {}, now)
    assert rotation.next(offers, NO_WISH, (), now) is not None
    return rotation, rotation.offers(listed(a={}, b={}), HERE, NO_WISH, {}, now)


def leaves(
    rotation: Rotation, offers: list[Offer] | None, now: float, seen: Seen = WORKING, waiting: Iterable[str] = ()
) -> str:
    return rotation.leaves(offers, NO_WISH, seen, frozenset(waiting), now)


def test_a_machine_takes_a_run_and_stays() -> None:
    rotation, offers = serving()
    assert rotation.serving is not None
    assert (rotation.serving.run, rotation.serving.name) == (run_id(A.run), "run-0")
    for now in (1.0, 100.0, 1e5):
        assert leaves(rotation, offers, now) == ""
    assert leaves(rotation, None, 2e5) == ""  # no index answers: the worker needs none


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({"state": "paused"}, "down for now"),
        ({"state": "ended"}, "ended"),
        ({"memory_bytes": 1 << 50}, "too little memory"),
    ],
)
def test_a_run_that_pauses_ends_or_grows_is_left_for_another(claims: dict[str, Any], words: str) -> None:
    rotation, _ = serving()
    machine = Machine(memory_bytes=1 << 40)
    alone = rotation.offers(listed(a=claims), machine, NO_WISH, {}, 1.0)
    assert leaves(rotation, alone, 1.0) == ""  # there is no other
    both = rotation.offers(listed(a=claims, b={}), machine, NO_WISH, {}, 2.0)
    assert words in leaves(rotation, both, 2.0)


def test_a_blocked_run_is_left_even_for_none() -> None:
    rotation, _ = serving()
    wishes = Wishes(blocked=frozenset({run_id(A.run)}))
    offers = rotation.offers(listed(a={}), HERE, wishes, {}, 1.0)
    assert "blocked" in rotation.leaves(offers, wishes, WORKING, frozenset(), 1.0)


def test_a_run_that_is_no_longer_listed_is_left_after_two_looks() -> None:
    rotation, both = serving()
    gone = [offer for offer in both if offer.run == run_id(B.run)]
    assert leaves(rotation, both, 1.0) == ""
    assert leaves(rotation, gone, 10.0) == ""
    assert leaves(rotation, both, 20.0) == ""
    assert leaves(rotation, gone, 30.0) == ""
    assert leaves(rotation, gone, 30.0 + DELISTED_S - 0.1) == ""
    assert "not listed" in leaves(rotation, gone, 30.0 + DELISTED_S)


def test_a_look_falls_on_the_moment_at_which_a_run_counts_as_gone() -> None:
    rotation, both = serving()
    gone = [offer for offer in both if offer.run == run_id(B.run)]
    leaves(rotation, both, 1.0)
    assert rotation.look_again_in(1.0) is None
    leaves(rotation, gone, 10.0)
    assert rotation.look_again_in(10.0) == DELISTED_S
    assert rotation.look_again_in(25.0) == DELISTED_S - 15.0
    assert rotation.look_again_in(10.0 + DELISTED_S) is None, "no run of looks after it"
    leaves(rotation, both, 26.0)
    assert rotation.look_again_in(26.0) is None
    named = Rotation(lambda: 0.0)
    named.begin(run_id(A.run), "run-0", 0.0)
    leaves(named, gone, 10.0)
    assert named.look_again_in(10.0) is None


def test_an_index_that_has_forgotten_most_runs_gets_time_to_be_told_again() -> None:
    names = {f"other-{number}": ListedRun(f"other-{number}", owner=f"other-{number}") for number in range(4)}
    rotation, _ = serving()
    whole = rotation.offers(
        [(run.opened(volunteers=2, missing=2), 1) for run in (A, *names.values())], HERE, NO_WISH, {}, 0.0
    )
    few, most = whole[1:3], whole[1:4]
    leaves(rotation, whole, 1.0)
    assert leaves(rotation, few, 10.0) == ""
    assert rotation.look_again_in(10.0) == FORGOTTEN_S
    assert leaves(rotation, few, 10.0 + FORGOTTEN_S - 1.0) == ""
    assert "not listed" in leaves(rotation, most, 10.0 + DELISTED_S), "the others are back, and it is not"
    assert "not listed" in leaves(rotation, few, 10.0 + FORGOTTEN_S)


def test_a_run_that_its_owner_named_need_not_be_listed() -> None:
    rotation = Rotation(lambda: 0.0)
    rotation.begin(run_id(A.run), "run-0", 0.0)
    offers = rotation.offers(listed(b={}), HERE, NO_WISH, {}, 0.0)
    for now in (1.0, 1_000.0, 2_000.0):
        assert leaves(rotation, offers, now) == ""


def test_a_listed_run_that_stays_out_of_reach_is_left_and_avoided() -> None:
    rotation, offers = serving()
    away = replace(WORKING, in_reach=False)
    assert leaves(rotation, offers, 10.0) == ""
    assert leaves(rotation, offers, 20.0, away) == ""
    assert leaves(rotation, offers, 20.0 + QUIET_S - 1, away) == ""
    assert "out of reach" in leaves(rotation, offers, 20.0 + QUIET_S, away)
    rotation.left()
    later = rotation.offers(listed(a={}, b={}), HERE, NO_WISH, {}, 30.0 + QUIET_S)
    assert [bool(offer.left_out) for offer in later] == [True, False]
    much_later = rotation.offers(listed(a={}, b={}), HERE, NO_WISH, {}, 1_000.0 + QUIET_S)
    assert [bool(offer.left_out) for offer in much_later] == [False, False]


def test_a_fuller_run_is_left_only_after_a_stay() -> None:
    rotation, _ = serving()
    full = rotation.offers(listed(a={"volunteers": 9, "missing": 0}, b={"volunteers": 1}), HERE, NO_WISH, {}, 0.0)
    silent = Seen(groups=0, waiting=0, in_reach=True)
    assert leaves(rotation, full, 5.0, silent) == ""
    assert leaves(rotation, full, 10.0) == ""  # its first group, after ten seconds
    stay = max(LEAST_STAY_S, 4 * 10.0)
    assert leaves(rotation, full, 10.0 + stay - 0.1) == ""
    assert "others have fewer" in leaves(rotation, full, 10.0 + stay)
    empty = rotation.offers(listed(a={"volunteers": 9, "missing": 0}, b={"volunteers": 0}), HERE, NO_WISH, {}, 0.0)
    assert leaves(rotation, empty, 10.0 + LEAST_STAY_S - 0.1) == ""
    assert "others have fewer" in leaves(rotation, empty, 10.0 + LEAST_STAY_S)  # nobody serves the other one


def test_a_run_that_says_for_long_that_it_has_nobody_draws_no_more_than_its_part() -> None:
    rotation, _ = serving()
    offers = rotation.offers(
        listed(a={"volunteers": 2, "missing": 8}, b={"volunteers": 0, "missing": 1}), HERE, NO_WISH, {}, 0.0
    )
    assert leaves(rotation, offers, 1.0) == "", "it has not stayed yet"
    assert "others have fewer" in leaves(rotation, offers, EMPTY_S), "one of two goes, though a fifth is its part"
    assert leaves(rotation, offers, 1.0 + EMPTY_S + 1.0) == ""


def test_a_machine_that_leaves_for_a_run_with_nobody_goes_there() -> None:
    """And not to the one that says it misses most: by chance it would go there nearly always."""
    draws = iter([0.0, 0.0, 0.99])
    rotation = Rotation(lambda: next(draws, 0.99))
    offers = rotation.offers(
        listed(a={"volunteers": 2, "missing": 8}, b={"volunteers": 0, "missing": 1}, c={"volunteers": 1, "missing": 9}),
        HERE,
        NO_WISH,
        {},
        0.0,
    )
    rotation.begin(run_id(A.run), "run-0", 0.0)
    assert leaves(rotation, offers, 1.0) == ""
    assert "others have fewer" in leaves(rotation, offers, 1.0 + LEAST_STAY_S)
    rotation.left()
    others = [offer for offer in offers if offer.run != run_id(A.run)]
    taken = rotation.next(others, NO_WISH, (), 2.0 + LEAST_STAY_S)
    assert taken is not None
    assert taken.run == run_id(B.run)
    rotation.left()
    taken = rotation.next(others, NO_WISH, (), 3.0 + LEAST_STAY_S)
    assert taken is not None
    assert taken.run == run_id(C.run), "once, and then by chance"


def test_a_run_that_a_machine_left_for_and_that_is_down_meanwhile_is_not_waited_for() -> None:
    rotation, _ = serving()
    offers = rotation.offers(
        listed(a={"volunteers": 9, "missing": 0}, b={"volunteers": 0}, c={}), HERE, NO_WISH, {}, 0.0
    )
    assert leaves(rotation, offers, 1.0) == ""
    assert "others have fewer" in leaves(rotation, offers, 1.0 + LEAST_STAY_S)
    rotation.left()
    later = rotation.offers(listed(b={"state": "paused"}, c={}), HERE, NO_WISH, {}, 2.0)
    taken = rotation.next(later, NO_WISH, (), 2.0 + LEAST_STAY_S)
    assert taken is not None
    assert taken.run == run_id(C.run)


def test_groups_that_wait_here_bring_their_run_first_once_it_is_back() -> None:
    rotation, both = serving("b")
    waiting = (run_id(A.run),)
    down = rotation.offers(listed(a={"state": "paused"}, b={}), HERE, NO_WISH, {}, 1.0)
    assert leaves(rotation, down, 1.0, waiting=waiting) == ""
    assert leaves(rotation, both, 2.0, waiting=waiting) == "", "what it has begun here is worth a stay"
    now = 1.0 + LEAST_STAY_S
    assert "deliver" in leaves(rotation, both, now, waiting=waiting)
    rotation.left()
    taken = rotation.next(both, NO_WISH, waiting, now)
    assert taken is not None
    assert taken.run == run_id(A.run)
    begun = rotation.serving
    assert begun is not None
    kinds = [begun.delivers_only]
    assert leaves(rotation, both, now + 1.0, replace(WORKING, waiting=4), waiting) == ""
    assert leaves(rotation, both, now + 2.0, WORKING) == ""
    kinds.append(begun.delivers_only)
    assert kinds == [True, False]  # delivered: it is served as any other
    rotation.left()
    rotation.next([both[1]], NO_WISH, (), now + 3.0)
    assert leaves(rotation, both, now + 4.0, waiting=waiting) == ""
    assert leaves(rotation, both, now + 4.0 + LEAST_STAY_S, waiting=waiting) == ""  # not again and again
    assert "deliver" in leaves(rotation, both, now + VISIT_AGAIN_S, waiting=waiting)


def test_a_run_that_was_left_for_need_does_not_bring_the_machine_back_for_its_last_group() -> None:
    """The last group's confirmation does not wait for the end, so one seems to be left nearly every time."""
    rotation, _ = serving()
    crowded = rotation.offers(listed(a={"volunteers": 9, "missing": 0}, b={"volunteers": 0}), HERE, NO_WISH, {}, 1.0)
    assert leaves(rotation, crowded, 1.0) == ""
    assert "others have fewer" in leaves(rotation, crowded, 1.0 + LEAST_STAY_S)
    rotation.left()
    waiting = (run_id(A.run),)
    taken = rotation.next(crowded, NO_WISH, waiting, 2.0 + LEAST_STAY_S)
    assert taken is not None
    assert taken.run == run_id(B.run)
    assert rotation.serving is not None
    assert not rotation.serving.delivers_only
    for now in (3.0, 40.0, 300.0):
        assert leaves(rotation, crowded, now + LEAST_STAY_S, waiting=waiting) == ""


@pytest.mark.parametrize(
    ("code", "excluded", "words", "blocks", "back_after"),
    [
        (exit_codes.RUN_FINISHED, False, "has ended", False, 300.0),
        (exit_codes.REFUSED_RUN, False, "broke the rules", True, 86_400.0),
        (exit_codes.WORK_REFUSED, False, "refuses this machine's work", True, 86_400.0),
        (exit_codes.UNREACHABLE, False, "could not be reached", False, 600.0),
        (exit_codes.TEMPORARY, False, "in a minute", False, 60.0),
        (exit_codes.MACHINE, True, "excluded", False, 3_600.0),
        (exit_codes.MACHINE, False, "cannot use this machine", False, 3_600.0),
        (exit_codes.UPDATE_REQUIRED, False, "newer p2prl", False, 86_400.0),
        (-9, False, "error", False, 300.0),
    ],
)
def test_the_end_of_a_worker_says_what_follows(
    code: int, excluded: bool, words: str, blocks: bool, back_after: float
) -> None:
    rotation, _ = serving()
    ending = rotation.ended(code, excluded=excluded, now=100.0)
    assert words in ending.why
    assert ending.blocks == blocks
    assert rotation.serving is None
    for now, avoided in ((100.0 + back_after - 1.0, True), (100.0 + back_after, False)):
        (offer,) = rotation.offers(listed(a={}), HERE, NO_WISH, {}, now)
        assert bool(offer.left_out) == avoided


def test_a_learner_whose_refusals_a_replay_contradicts_is_blocked_for_that() -> None:
    rotation, _ = serving()
    ending = rotation.ended(exit_codes.WORK_REFUSED, excluded=False, found_right=True, now=100.0)
    assert ending.why.startswith("rejects groups that this machine has replayed and found right")
    assert ending.blocks


def test_a_machine_that_no_run_can_use_ends_and_one_that_worked_goes_on() -> None:
    rotation, _ = serving()
    for number in range(FAILURES_TO_END):
        assert not rotation.is_hopeless
        rotation.begin(f"run-{number}", "x", 0.0)
        rotation.ended(exit_codes.MACHINE, excluded=False, now=1.0)
    assert rotation.is_hopeless
    rotation.begin("another", "x", 2.0)
    leaves(rotation, None, 3.0)
    rotation.ended(exit_codes.MACHINE, excluded=False, now=4.0)
    assert not rotation.is_hopeless


def test_a_refused_listing_is_left_out_with_its_reason() -> None:
    rotation = Rotation(lambda: 0.0)
    (offer,) = rotation.offers(listed(a={}), HERE, NO_WISH, {run_id(A.run): "its listing is refused: goal"}, 0.0)
    assert offer.left_out == "its listing is refused: goal"
    assert rotation.next([offer], NO_WISH, (), 0.0) is None


def test_every_exit_code_of_a_worker_has_an_answer() -> None:
    rotation = Rotation(lambda: 0.0)
    for code in range(256):
        rotation.begin(ListedRun().name, "x", 0.0)
        assert rotation.ended(code, excluded=False, now=0.0).why
