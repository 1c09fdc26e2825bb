"""The choice of those that stand by: a queue of groups with volunteers that wait for receipts, as the real ones do."""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass

import pytest

from p2prl.learner.timing.standby import StandbyChoice
from p2prl.learner.timing.training_stage import Activity, TrainingTime, share_without_groups

GROUPS = 16
UPDATE_S = 16.0
NEED_PER_S = GROUPS / UPDATE_S
OUTSTANDING = 8
"""Groups of a volunteer without a receipt, at which it waits."""


@dataclass
class Machine:
    per_s: float
    price: float | None = 1.0
    busy_s: float = 0.0
    outstanding: int = 0
    is_there: bool = True
    verified: int = 0
    """Groups with a receipt: what credit comes from."""


class Swarm:
    """Volunteers deliver a group at a time; the learner checks them in order of arrival and trains when it has enough.

    A group gets its receipt when it is checked, and is checked only while fewer than 1.5 updates' groups are ready.
    """

    def __init__(self, machines: dict[bytes, Machine], *, seed: int = 0, chooses: bool = True) -> None:
        self.machines = machines
        self.choice = StandbyChoice(groups_per_update=GROUPS, most=1_000)
        self.chooses = chooses
        self.rng = random.Random(seed)
        self.now = 0.0
        self.ready = 0
        self.backlog: list[bytes] = []
        self.waited_s = 0.0
        self.trained_s = 0.0
        self._offer()
        self._events = [(self.rng.random() / each.per_s, peer) for peer, each in machines.items()]
        heapq.heapify(self._events)

    def _offer(self) -> None:
        self.choice.offered({peer: each.price for peer, each in self.machines.items() if each.price is not None})

    def leave(self, peer: bytes) -> None:
        self.machines[peer].is_there = False

    def run(self, updates: int) -> float:
        """Share of the time at work."""
        began = self.now
        for _ in range(updates):
            last = self.now
            self._until(lambda: self.ready >= GROUPS)
            waited = self.now - last
            self.ready -= GROUPS
            self._check()
            ends = self.now + UPDATE_S
            self._until(lambda ends=ends: self._events[0][0] > ends)
            self.now = ends
            if self.chooses:
                waiting = self.ready + len(self.backlog)
                self.choice.updated(self.now, waited=waited / (UPDATE_S + waited), waiting=waiting)
        return updates * UPDATE_S / (self.now - began)

    def _until(self, enough) -> None:  # type: ignore[no-untyped-def]
        while not enough():
            at, peer = heapq.heappop(self._events)
            machine = self.machines[peer]
            self.now = max(self.now, at)
            if not machine.is_there:
                continue
            works = peer not in self.choice.peers and machine.outstanding < OUTSTANDING
            seconds = self.rng.lognormvariate(0.0, 0.3) / machine.per_s if works else 1.0
            if works:
                machine.busy_s += seconds
                machine.outstanding += 1
                self.backlog.append(peer)
                self._check()
            heapq.heappush(self._events, (at + seconds, peer))

    def _check(self) -> None:
        while self.backlog and self.ready < 1.5 * GROUPS:
            peer = self.backlog.pop(0)
            self.machines[peer].outstanding -= 1
            self.machines[peer].verified += 1
            self.ready += 1
            self.choice.delivered(peer, self.now)

    def cost(self) -> float:
        return sum(each.busy_s * (each.price or 1.0) for each in self.machines.values())


def watched(most: int = 1_000) -> StandbyChoice:
    """A choice among eight alike that have delivered a group a second for a minute."""
    choice = StandbyChoice(groups_per_update=GROUPS, most=most)
    peers = [bytes([number]) for number in range(8)]
    choice.offered(dict.fromkeys(peers, 1.0))
    for second in range(64):
        for peer in peers:
            choice.delivered(peer, float(second))
    return choice


def fleet(seed: int, *, surplus: float, count: int = 24, willing: float = 1.0) -> dict[bytes, Machine]:
    """Machines of unlike speeds and prices that together bring `surplus` times what the learner needs."""
    rng = random.Random(f"fleet/{seed}")
    speeds = [rng.lognormvariate(0.0, 0.6) for _ in range(count)]
    scale = surplus * NEED_PER_S / sum(speeds)
    return {
        bytes([number]): Machine(scale * speed, price=rng.lognormvariate(0.0, 0.6) if rng.random() < willing else None)
        for number, speed in enumerate(speeds)
    }


def test_a_surplus_costs_a_third_less_and_trains_as_fast() -> None:
    for seed in range(6):
        everybody, chosen = (Swarm(fleet(seed, surplus=3.0), seed=seed, chooses=flag) for flag in (False, True))
        everybody.run(200), chosen.run(200)
        for swarm in (everybody, chosen):  # once the choice has been made
            for machine in swarm.machines.values():
                machine.busy_s = 0.0
        at_work = chosen.run(200) / everybody.run(200)
        assert at_work >= 0.97, (seed, at_work)
        assert chosen.cost() <= 0.7 * everybody.cost(), (seed, chosen.cost() / everybody.cost())


def test_a_swarm_that_is_just_enough_keeps_working() -> None:
    for seed in range(4):
        everybody, chosen = (Swarm(fleet(seed, surplus=1.1), seed=seed, chooses=flag) for flag in (False, True))
        assert chosen.run(300) >= 0.97 * everybody.run(300)


def test_a_swarm_that_is_too_small_puts_nobody_on_standby() -> None:
    swarm = Swarm(fleet(1, surplus=0.7))
    for _ in range(100):
        swarm.run(1)
        assert swarm.choice.peers == ()


def test_only_those_that_agreed_stand_by_and_the_dearest_first() -> None:
    machines = {
        bytes([number]): Machine(NEED_PER_S / 4, price=None if number % 2 else number + 1.0) for number in range(16)
    }
    swarm = Swarm(machines)
    seen: list[bytes] = []
    for _ in range(150):
        swarm.run(1)
        seen += [peer for peer in swarm.choice.peers if peer not in seen]
    assert seen, "there is work for four of sixteen"
    assert all(machines[peer].price is not None for peer in seen)
    assert seen[0] == bytes([14])
    assert [machines[peer].price for peer in seen[:4]] == [15.0, 13.0, 11.0, 9.0]


def test_those_that_leave_are_replaced_before_training_has_waited_long() -> None:
    swarm = Swarm(fleet(3, surplus=3.0))
    swarm.run(200)
    assert len(swarm.choice.peers) >= 8
    before = set(swarm.choice.peers)
    working = [each for each in swarm.machines if each not in before]
    while sum(swarm.machines[each].per_s for each in working) > 0.6 * NEED_PER_S:
        swarm.leave(working.pop())
    assert swarm.run(20) >= 0.85
    assert not before <= set(swarm.choice.peers), "some of them work again"
    assert swarm.run(60) >= 0.97


def rested(resting: int) -> StandbyChoice:
    """Eight alike, of which `resting` stand by."""
    choice = watched(most=resting)
    while len(choice.peers) < resting:
        choice.updated(64.0, waited=0.0, waiting=10 * GROUPS)
    return choice


def working(choice: StandbyChoice) -> list[bytes]:
    return [bytes([number]) for number in range(8) if bytes([number]) not in choice.peers]


def test_the_cheapest_works_at_once_in_place_of_one_that_has_left() -> None:
    choice = rested(4)
    prices = {peer: 1.0 + number for number, peer in enumerate(choice.peers)}
    choice.offered({**dict.fromkeys(working(choice), 1.0), **prices})
    cheapest, *others = choice.peers
    choice.left(working(choice)[0])
    assert set(choice.peers) == set(others)
    assert cheapest in working(choice)


def test_who_left_is_replaced_by_as_many_as_bring_what_it_brought() -> None:
    choice = StandbyChoice(groups_per_update=GROUPS, most=3)
    slow, fast = [bytes([number]) for number in range(4)], b"fast"
    choice.offered(dict.fromkeys(slow, 1.0))
    for second in range(64):
        choice.delivered(fast, second / 2)
        for peer in slow:
            choice.delivered(peer, float(second))
    while len(choice.peers) < 3:
        choice.updated(64.0, waited=0.0, waiting=10 * GROUPS)
    choice.left(fast)
    assert len(choice.peers) == 1, "it was as fast as two of them"


def test_nobody_is_called_for_one_that_stood_by_or_was_a_newcomer_or_is_not_known() -> None:
    choice = rested(4)
    resting = choice.peers
    choice.left(b"never seen")
    for second in range(3):
        choice.delivered(b"new", 61.0 + second)
    choice.left(b"new")
    assert choice.peers == resting
    choice.left(resting[0])
    assert choice.peers == resting[1:], "the one that left no longer stands by, and nobody was called for it"


def test_a_link_that_fails_again_and_again_calls_one_until_it_has_delivered_again() -> None:
    choice = rested(4)
    flapping = working(choice)[0]
    choice.left(flapping)
    assert len(choice.peers) == 3
    for second in range(3):
        choice.left(flapping)
        choice.delivered(flapping, 65.0 + second)
    choice.left(flapping)
    assert len(choice.peers) == 3
    for second in range(4):
        choice.delivered(flapping, 70.0 + second)
    choice.left(flapping)
    assert len(choice.peers) == 2


def test_the_attempt_after_a_replacement_waits_no_longer_than_the_first() -> None:
    choice = rested(4)
    choice.left(working(choice)[0])
    for number in range(8):
        assert len(choice.peers) == 3, number
        for peer in working(choice):
            choice.delivered(peer, 65.0 + number)
        choice.updated(65.0 + number, waited=0.0, waiting=10 * GROUPS)
    assert len(choice.peers) == 4


@pytest.mark.parametrize(("waits", "work_again"), [(Activity.WAIT_REPLAY, False), (Activity.WAIT_GROUPS, True)])
def test_a_learner_that_waits_for_its_own_checks_calls_nobody(waits: Activity, *, work_again: bool) -> None:
    choice = watched()
    time = TrainingTime(0.0)
    while not choice.peers:
        choice.updated(64.0, waited=0.0, waiting=5 * GROUPS)
    resting = choice.peers
    time.switch(Activity.UPDATE, 0.0)
    time.switch(waits, 10.0)
    choice.updated(104.0, waited=share_without_groups(time.take_shares(40.0)), waiting=5 * GROUPS)
    assert set(choice.peers) < set(resting) if work_again else choice.peers == resting


def test_nobody_more_stands_by_while_what_is_left_drains() -> None:
    """A pile says that there was too much, not that there still is."""

    def on_standby_after(waiting: list[int]) -> int:
        choice = watched()
        for number, left in enumerate(waiting):
            choice.updated(64.0 + number, waited=0.0, waiting=left)
        return len(choice.peers)

    level, draining = [10 * GROUPS] * 8, [10 * GROUPS - 4 * number for number in range(8)]
    assert on_standby_after(level) > 0
    assert on_standby_after(draining) == 0, "28 of 112 groups were taken from the pile"
    assert on_standby_after([*level[:-1], level[0] - 14]) > 0, "an eighth"
    assert on_standby_after([*level[:-1], level[0] - 15]) == 0
    assert on_standby_after(draining + [draining[-1]] * 8) > 0, "once it is level again"


def test_some_are_called_at_most_every_third_update() -> None:
    choice = watched()
    for update in range(200):
        choice.updated(64.0 + update, waited=0.0, waiting=10 * GROUPS)
    resting = [len(choice.peers)]
    assert resting[0] >= 4
    for update in range(7):
        choice.updated(300.0 + update, waited=1.0, waiting=0)
        resting.append(len(choice.peers))
    called = [number for number, (before, after) in enumerate(itertools.pairwise(resting)) if after < before]
    assert called == [0, 3, 6]


def test_who_takes_the_word_back_works_at_once() -> None:
    swarm = Swarm(fleet(3, surplus=3.0))
    swarm.run(100)
    gone, *kept = swarm.choice.peers
    swarm.choice.offered(dict.fromkeys(kept, 1.0))
    assert set(swarm.choice.peers) == set(kept)
    assert gone not in swarm.choice.peers


def test_newcomers_are_judged_before_they_stand_by() -> None:
    choice = StandbyChoice(groups_per_update=GROUPS, most=1_000)
    choice.offered({b"new": 5.0, b"old": 1.0, b"other": 1.0})
    for second in range(64):
        choice.delivered(b"old", float(second))
        choice.delivered(b"other", float(second))
    for late in (61.0, 62.0, 63.0):
        choice.delivered(b"new", late)
    for update in range(8):
        choice.updated(64.0 + update, waited=0.0, waiting=10 * GROUPS)
    assert b"new" not in choice.peers
    assert len(choice.peers) == 1
    choice.delivered(b"new", 72.0)
    for update in range(8):
        choice.updated(72.0 + update, waited=0.0, waiting=10 * GROUPS)
    assert b"new" in choice.peers


def test_no_more_than_the_message_holds() -> None:
    choice = watched(most=2)
    for update in range(100):
        choice.updated(64.0 + update, waited=0.0, waiting=10 * GROUPS)
    assert len(choice.peers) == 2


def test_a_shortage_doubles_the_wait_for_the_next_attempt() -> None:
    choice = StandbyChoice(groups_per_update=GROUPS, most=1_000)
    peers = [bytes([number]) for number in range(8)]
    choice.offered(dict.fromkeys(peers, 1.0))
    now = 0.0

    def updates_until_somebody_stands_by() -> int:
        nonlocal now
        for count in range(1, 1_000):
            for _ in range(4):
                now += 1.0
                for peer in peers:
                    if peer not in choice.peers:
                        choice.delivered(peer, now)
            choice.updated(now, waited=0.0, waiting=10 * GROUPS)
            if choice.peers:
                return count
        raise AssertionError("nobody")

    waits = []
    for _ in range(7):
        waits.append(updates_until_somebody_stands_by())
        while choice.peers:
            choice.updated(now, waited=0.5, waiting=0)
    assert waits == sorted(waits)
    assert waits[0] == 8
    assert waits[1] >= 16
    assert waits[-1] <= 256


LIAR = bytes([5])


def verified_of_the_liar(price: float | None, seed: int, *, held_back: float = 1.0) -> int:
    """Groups that one of 24 machines is credited for, in a swarm with three times the need."""
    machines = fleet(seed, surplus=3.0)
    machines[LIAR].price = price
    machines[LIAR].per_s *= held_back
    Swarm(machines, seed=seed).run(300)
    return machines[LIAR].verified


def test_a_lying_price_is_credited_for_no_more_than_naming_none() -> None:
    """The lowest price makes a volunteer work, as naming none does; the highest makes it rest."""
    silent, cheap, dear = (
        sum(verified_of_the_liar(price, seed) for seed in range(4)) for price in (None, 1e-9, 1e6)
    )  # fmt: skip
    assert cheap <= 1.03 * silent
    assert dear < 0.7 * silent


def test_a_volunteer_that_holds_groups_back_to_look_slow_is_credited_for_fewer() -> None:
    """What it says of its speed is nowhere asked, so it could only deliver less."""
    for price in (None, 1.0):
        honest, slow = (sum(verified_of_the_liar(price, seed, held_back=h) for seed in range(4)) for h in (1.0, 0.4))
        assert slow < honest


def test_liars_with_the_lowest_price_put_nobody_on_standby_that_agreed_to_nothing() -> None:
    machines = fleet(7, surplus=3.0)
    for number, machine in enumerate(machines.values()):
        machine.price = 1e-9 if number % 2 else None
    swarm = Swarm(machines)
    silent = {peer for peer, machine in machines.items() if machine.price is None}
    for _ in range(150):
        swarm.run(1)
        assert not silent & set(swarm.choice.peers)
    assert swarm.choice.peers, "it is they that rest, at any price"
