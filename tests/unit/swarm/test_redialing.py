"""Redialing: who is tried, how often, and when nobody is."""

from __future__ import annotations

import itertools
import random

from p2prl.protocol.identity import PeerId
from p2prl.swarm.peers.redialing import (
    AT_ONCE,
    EAGER_S,
    ENOUGH_LINKS,
    LIST_AFTER_S,
    LIST_AGAIN_S,
    PATIENT_S,
    NamedAddress,
    Redialer,
)

LEARNER, SEEDER = PeerId("learner"), PeerId("seeder")
NAMED = ((LEARNER, "named/learner"), (SEEDER, "named/seeder"))
STRANGERS: list[NamedAddress] = [(PeerId(f"s{i}"), f"stranger/{i}") for i in range(40)]


def redialer(*, is_learner: bool = False, named: tuple[NamedAddress, ...] = NAMED) -> Redialer:
    return Redialer(named, random.Random(1), 0.0, is_learner=is_learner)


def due(
    who: Redialer,
    now: float,
    remembered: list[NamedAddress] | None = None,
    *,
    has_learner: bool = False,
    links: int = 0,
    linked: frozenset[PeerId] = frozenset(),
) -> list[str]:
    return who.due(
        remembered or [], now, learner=LEARNER, has_learner=has_learner, links=links, is_linked=linked.__contains__
    )


def fail_all(who: Redialer, addresses: list[str], now: float) -> None:
    for address in addresses:
        who.failed(address, now)


def test_nobody_is_dialed_with_the_learner_linked() -> None:
    assert due(redialer(), 0, STRANGERS, has_learner=True, links=1) == []


def test_the_link_comes_first_then_remembered_peers_a_few_at_once() -> None:
    assert due(redialer(), 0, STRANGERS) == ["named/learner", "named/seeder", *(f"stranger/{i}" for i in range(6))]


def test_a_dial_under_way_is_not_repeated_and_counts() -> None:
    who = redialer()
    assert len(due(who, 0, STRANGERS)) == AT_ONCE
    assert due(who, 60, STRANGERS) == []
    who.failed("stranger/0", 60)
    assert due(who, 60, STRANGERS) == ["stranger/6"]


def test_named_addresses_are_tried_every_three_seconds_then_less_often() -> None:
    who = redialer()
    times = []
    for second in range(400):
        dialed = due(who, second)
        times += [second] * ("named/learner" in dialed)
        fail_all(who, dialed, second)
    gaps = {later - earlier for earlier, later in itertools.pairwise(times) if later <= 300}
    assert gaps == {EAGER_S}
    assert {later - earlier for earlier, later in itertools.pairwise(times) if earlier > 301} == {PATIENT_S}


def test_eagerness_begins_anew_when_the_learner_is_lost_again() -> None:
    who = redialer()
    assert due(who, 1000, has_learner=True, links=1) == []
    dialed = due(who, 1001)
    fail_all(who, dialed, 1001)
    assert due(who, 1001 + EAGER_S - 0.1) == []
    assert due(who, 1001 + EAGER_S) == dialed


def test_a_linked_peer_is_not_dialed_but_for_a_learner_that_is_silent() -> None:
    linked = frozenset({LEARNER, SEEDER})
    assert due(redialer(), 0, links=2, linked=linked) == ["named/learner"]


def test_with_enough_links_only_the_learner_is_tried_among_remembered_peers() -> None:
    remembered = [*STRANGERS, (LEARNER, "stranger/learner")]
    assert due(redialer(named=()), 0, remembered, links=ENOUGH_LINKS) == ["stranger/learner"]
    assert len(due(redialer(named=()), 0, remembered, links=ENOUGH_LINKS - 1)) == AT_ONCE


def test_a_learner_dials_until_it_has_some_neighbors() -> None:
    who = redialer(is_learner=True, named=())
    assert len(due(who, 0, STRANGERS, links=ENOUGH_LINKS - 1)) == AT_ONCE
    assert due(redialer(is_learner=True, named=()), 0, STRANGERS, links=ENOUGH_LINKS) == []


def test_many_dead_addresses_keep_none_from_its_turn_and_cost_little() -> None:
    who = redialer()
    dialed: list[str] = []
    for second in range(3600):
        now = due(who, second, STRANGERS)
        dialed += now
        fail_all(who, now, second)
    for _, address in STRANGERS:
        assert dialed.count(address) > 10
    assert sum(address.startswith("stranger") for address in dialed) < 3600 * len(STRANGERS) / 64
    first_minute = dialed[: dialed.index("stranger/0") + 200]
    assert {address for _, address in STRANGERS} <= set(first_minute)


def test_a_stranger_that_answered_is_tried_soon_when_it_is_lost() -> None:
    who = redialer(named=())
    one = STRANGERS[:1]
    now = 0.0
    for _ in range(12):
        while not (dialed := due(who, now, one)):
            now += 1
        fail_all(who, dialed, now)
    while not due(who, now, one):
        now += 1
    who.reached("stranger/0", now)
    due(who, now, one, has_learner=True, links=1)
    assert due(who, now + EAGER_S, one) == ["stranger/0"]


def test_the_list_is_read_a_minute_after_the_learner_was_lost_then_every_five() -> None:
    who = redialer()
    assert not who.wants(500, has_learner=True, links=1)
    read = [now for now in range(500, 1_500) if who.wants(now, has_learner=False, links=0) and who.wants_list(now)]
    assert read == [500 + LIST_AFTER_S + count * LIST_AGAIN_S for count in range(4)]


def test_listed_addresses_are_dialed_like_named_ones_until_the_next_list() -> None:
    who = redialer(named=())
    who.take_list([(LEARNER, "listed/learner"), (SEEDER, "listed/seeder")])
    assert due(who, 0) == ["listed/learner", "listed/seeder"]
    fail_all(who, ["listed/learner", "listed/seeder"], 0)
    assert due(who, EAGER_S - 0.1) == []
    assert due(who, EAGER_S, linked=frozenset({SEEDER})) == ["listed/learner"]
    who.failed("listed/learner", EAGER_S)
    who.take_list([(SEEDER, "listed/other")])
    assert due(who, 2 * EAGER_S) == ["listed/other"]


def test_a_learner_reads_its_list_in_any_case_and_dials_who_is_new_on_it() -> None:
    who = redialer(is_learner=True)
    times = range(1_000)
    read = [now for now in times if not who.wants(now, has_learner=False, links=9) and who.wants_list(now)]
    assert read == [0, LIST_AGAIN_S, 2 * LIST_AGAIN_S, 3 * LIST_AGAIN_S]
    assert due(who, 1_000, STRANGERS, links=9) == []
    who.take_list([(SEEDER, "listed/seeder"), (PeerId("other"), "listed/other")])
    assert due(who, 1_000, STRANGERS, links=9, linked=frozenset({SEEDER})) == ["listed/other"]
