"""The choice of a run: by what it lacks, never against the owner's wishes, and without swings of the crowd."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from p2prl.index.run_choice import Machine, Offer, Wishes, by_need, choose, left_out, moved
from p2prl.protocol.listing import run_id
from p2prl_lab.testing.listed_runs import ListedRun, many_runs

GIB = 1 << 30


def offer(run: ListedRun, volunteers: int = 0, missing: int | None = 4, *, crowd: int = 1, why: str = "") -> Offer:
    return Offer(run.opened(volunteers=volunteers, missing=missing), crowd, why)


def chances(offers: list[Offer], wishes: Wishes | None = None) -> Counter[str]:
    rng = random.Random(7)
    taken = [choose(offers, wishes or Wishes(), rng.random()) for _ in range(4_000)]
    return Counter(each.opened.listing.name for each in taken if each is not None)


RUNS = many_runs(4)


@pytest.mark.parametrize(
    ("volunteers", "missing", "wanted"),
    [
        (0, 0, 1),
        (0, None, 4),
        (3, None, 7),
        (3, 5, 8),
        (3, -2, 1),
        (3, -9, 1),
        (0, 900, 16),
        (10, 900, 116),
        (10, 9, 19),
    ],
)
def test_wants(volunteers: int, missing: int | None, wanted: int) -> None:
    each = offer(RUNS[0], volunteers, missing)
    assert each.wanted == wanted
    assert each.lacking == max(0, wanted - volunteers)


def test_runs_are_taken_in_proportion_to_what_they_lack() -> None:
    taken = chances([offer(RUNS[0], 2, 6), offer(RUNS[1], 2, 2), offer(RUNS[2], 9, 0), offer(RUNS[3], 1, 8, why="no")])
    assert set(taken) == {"run-0", "run-1"}
    assert taken["run-0"] / taken["run-1"] == pytest.approx(3.0, rel=0.15)


def test_where_none_lacks_anything_the_wants_decide() -> None:
    taken = chances([offer(RUNS[0], 6, 0), offer(RUNS[1], 2, 0)])
    assert taken["run-0"] / taken["run-1"] == pytest.approx(3.0, rel=0.15)
    assert choose([], Wishes(), 0.5) is None
    assert choose([offer(RUNS[0], why="no")], Wishes(), 0.5) is None


def test_listings_of_one_subnet_or_one_owner_share_a_part() -> None:
    crowd = [offer(run, crowd=3) for run in RUNS[:3]]
    assert chances([*crowd, offer(RUNS[3])])["run-3"] / 4_000 == pytest.approx(0.5, abs=0.04)
    own = [offer(run) for run in many_runs(3, owners=1)]
    assert chances([*own, offer(RUNS[3])])["run-3"] / 4_000 == pytest.approx(0.5, abs=0.04)


def test_preferences_hold_as_long_as_one_of_them_lacks_volunteers() -> None:
    small = ListedRun("tiny-sums", "a", (("parameters", 1_000),))
    large = ListedRun("big-proofs", "b", (("parameters", 9_000_000_000),))
    offers = [offer(small, 0, 1), offer(large, 0, 9)]
    assert set(chances(offers, Wishes(prefer=("small",)))) == {"tiny-sums"}
    assert set(chances(offers, Wishes(prefer=("PROOFS",)))) == {"big-proofs"}
    assert set(chances(offers, Wishes(prefer=("small", "proofs")))) == {"tiny-sums", "big-proofs"}
    assert set(chances(offers, Wishes(prefer=("nothing",)))) == {"tiny-sums", "big-proofs"}
    assert set(chances([offer(small, 3, 0), offer(large, 0, 9)], Wishes(prefer=("small",)))) == {"big-proofs"}


def test_the_list_begins_with_what_is_most_likely_taken() -> None:
    offers = [offer(RUNS[0], 2, 2), offer(RUNS[1], 2, 6), offer(RUNS[2], 5, 0), offer(RUNS[3], why="no")]
    assert [each.opened.listing.name for each in by_need(offers, Wishes())] == ["run-1", "run-0", "run-2"]


@pytest.mark.parametrize(
    ("claims", "machine", "wishes", "words"),
    [
        ({}, {}, {}, ""),
        ({"state": "ended"}, {}, {}, "ended"),
        ({"state": "paused"}, {}, {}, "down for now"),
        ({"memory_bytes": 4 * GIB}, {"memory_bytes": 4 * GIB}, {}, ""),
        ({"memory_bytes": 4 * GIB + 1}, {"memory_bytes": 4 * GIB}, {}, "too little memory"),
        ({"disk_bytes": 4 * GIB + 1}, {"disk_bytes": 4 * GIB}, {}, "too little disk"),
        ({}, {}, {"blocked": "run"}, "blocked this run"),
        ({}, {}, {"blocked": "owner"}, "blocked its owner"),
        ({}, {}, {"only": "owner"}, ""),
        ({}, {}, {"only": "other"}, "none of those you allow"),
    ],
)
def test_reasons_to_leave_a_run_out(claims: dict[str, Any], machine: Any, wishes: dict[str, str], words: str) -> None:
    opened = RUNS[0].opened(**claims)
    ids = {"run": run_id(opened.run), "owner": str(opened.owner), "other": str(RUNS[1].learner.peer_id)}
    named: dict[str, Any] = {name: frozenset({ids[which]}) for name, which in wishes.items()}
    mine = Wishes(**named)
    why = left_out(opened, Machine(**machine), mine)
    assert words in why
    assert bool(words) == bool(why)


def test_nobody_leaves_a_run_that_is_no_fuller_than_the_others() -> None:
    offers = [offer(RUNS[0], 4, 4), offer(RUNS[1], 2, 2)]
    assert moved(offers[0], offers, Wishes(), (0.0, 0.5)) is None
    assert moved(offers[1], offers, Wishes(), (0.0, 0.5)) is None


def test_a_fuller_run_gives_some_away_and_no_more_than_its_excess() -> None:
    offers = [offer(RUNS[0], 9, 1), offer(RUNS[1], 1, 9)]
    leaving = [moved(offers[0], offers, Wishes(), (draw / 1_000, 0.5)) for draw in range(1_000)]
    assert sum(each is not None for each in leaving) == pytest.approx(1_000 * 0.5 * 4 / 9, abs=2)
    assert {each.opened.listing.name for each in leaving if each is not None} == {"run-1"}
    assert moved(offers[1], offers, Wishes(), (0.0, 0.5)) is None


def test_a_move_leads_to_a_run_that_is_filled_less_with_the_newcomer() -> None:
    one_each = [offer(RUNS[0], 1, 0), offer(RUNS[1], 0, 1)]
    assert moved(one_each[0], one_each, Wishes(), (0.0, 0.5)) is None  # the other would be as full as this one is
    two = [offer(RUNS[0], 2, 0), offer(RUNS[1], 0, 3)]
    assert moved(two[0], two, Wishes(), (0.0, 0.5)) == two[1]
    closed = [two[0], replace(two[1], left_out="no")]
    assert moved(closed[0], closed, Wishes(), (0.0, 0.5)) is None
    assert moved(two[0], [], Wishes(), (0.0, 0.5)) is None


def test_two_that_took_the_same_new_run_part_within_two_minutes() -> None:
    """Six looks at listings, of which the first one and a half pass before a machine has stayed long enough."""
    rng, parted = random.Random(2), 0
    for _ in range(1_000):
        here = [2, 0]
        for _ in range(5):
            offers = [offer(run, volunteers, None) for run, volunteers in zip(RUNS, here, strict=False)]
            for place in [0] * here[0] + [1] * here[1]:
                if moved(offers[place], offers, Wishes(), (rng.random(), rng.random())) is not None:
                    here[place] -= 1
                    here[1 - place] += 1
        parted += here == [1, 1]
    assert parted > 900


def test_a_run_with_nobody_gets_a_machine_though_its_part_is_less_than_one() -> None:
    """Of five machines it should have .4; looks at listings as in the test before."""
    rng, visited = random.Random(3), 0
    for _ in range(300):
        here, wants, came = [4, 0, 1], [10, 1, 1], False
        for _ in range(5):
            offers = [offer(run, n, max(0, want - n)) for run, n, want in zip(RUNS[:3], here, wants, strict=True)]
            empty = [each.run for each in offers if each.volunteers == 0]
            for place in [place for place, count in enumerate(tuple(here)) for _ in range(count)]:
                target = moved(offers[place], offers, Wishes(), (rng.random(), rng.random()), empty=empty)
                if target is not None:
                    here[place] -= 1
                    here[[each.run for each in offers].index(target.run)] += 1
                    came |= target.run == offers[1].run
        visited += came
    assert visited > 290


def test_many_runs_that_say_they_have_nobody_draw_no_more_machines_than_one() -> None:
    served = offer(RUNS[0], 8, 100)
    empty = [offer(run, 0, 1) for run in many_runs(40)[1:]]
    rng, offers, names = random.Random(5), [served, *empty], [each.run for each in empty]
    gone = sum(
        moved(served, offers, Wishes(), (rng.random(), rng.random()), empty=names) is not None for _ in range(8 * 500)
    )
    assert gone / 500 < 1.2, "of eight machines that look once"


def simulated(seed: int, scale: float, *, volunteers: int = 1_000, runs: int = 50) -> tuple[list[float], int]:
    """Volunteers that arrive within ten minutes, read listings up to a minute old, and move on as `moved` says.

    Returns each run's part of the time served over its part of the wants, and the moves.
    """
    rng = random.Random(seed)
    wants = [max(3, round(scale * 10 ** rng.uniform(0.9, 1.9))) for _ in range(runs)]
    listed = many_runs(runs)
    opened = [run.opened() for run in listed]
    here, at = [0] * runs, [-1] * volunteers

    def fresh(place: int) -> Offer:
        claims = msgspec.structs.replace(
            opened[place].listing, volunteers=here[place], missing=wants[place] - here[place]
        )
        return Offer(replace(opened[place], listing=claims))

    offers = [fresh(place) for place in range(runs)]
    place_of = {each.run: place for place, each in enumerate(offers)}
    events = [(rng.uniform(0, 600), 1, number) for number in range(volunteers)]
    events += [(rng.uniform(0, 60), 0, place) for place in range(runs)]
    heapq.heapify(events)
    served, moves, before = [0.0] * runs, 0, 900.0
    while events[0][0] < 2_700:
        now, kind, number = heapq.heappop(events)
        if now > before:
            served = [sum_ + count * (now - before) for sum_, count in zip(served, here, strict=True)]
            before = now
        if kind == 0:
            offers[number] = fresh(number)
            heapq.heappush(events, (now + 60, 0, number))
            continue
        if at[number] < 0:
            target = choose(offers, Wishes(), rng.random())
        else:
            target = moved(offers[at[number]], offers, Wishes(), (rng.random(), rng.random()))
            moves += target is not None
            here[at[number]] -= target is not None
        if target is not None:
            at[number] = place_of[target.run]
            here[at[number]] += 1
        # Two decisions in a minute: the program looks at the listings every twenty seconds.
        heapq.heappush(events, (now + rng.uniform(25, 35), 1, number))
    total, wanted = sum(served), sum(wants)
    return [part / total / (want / wanted) for part, want in zip(served, wants, strict=True)], moves


@pytest.mark.parametrize("scale", [0.5, 4.0])
def test_a_thousand_volunteers_serve_fifty_runs_by_their_needs(scale: float) -> None:
    """Three quarters as many wanted as there are, and six times as many."""
    shares, moves = simulated(1, scale)
    assert max(abs(share - 1) for share in shares) < 0.10
    assert moves < 1_000  # fewer than one for each volunteer in 45 minutes
