"""End of a run: it waits for late groups, but neither hours of replays nor a user who wants to stop."""

from __future__ import annotations

from typing import Any, cast

import pytest

from p2prl.learner.shutdown import Shutdown


class Swarm:
    """Stands for the parts of a learner around its shutdown: each replay and each read takes its time."""

    def __init__(self, *, waiting: int, replay_s: float) -> None:
        self.time = 1_000.0
        self.waiting = waiting
        self.replay_s = replay_s
        self.arriving: list[float] = []
        self.heads: list[bool] = []
        self.notices: list[str] = []
        self.reads = 0
        self.recent_peers = 0
        self.back: tuple[int, ...] = ()
        """Peers that have delivered a group since the start; those from before are numbered from 0."""
        self.returns_at = self.leaves_at = float("inf")
        self.slices = 0
        """Slices of the last version's evaluation that are left, one a turn."""

    def now(self) -> float:
        return self.time

    @property
    def unsettled_groups(self) -> int:
        return self.waiting

    def settle_next(self, *, step: int) -> bool:
        if not self.waiting:
            return False
        self.waiting -= 1
        self.time += self.replay_s
        return True

    def finish(self, *, step: int) -> bool:
        return False

    def evaluate(self, *, idle: bool, finished: bool) -> bool:
        assert idle
        assert finished
        self.slices -= 1
        return self.slices >= 0

    def read(self, timeout_s: float, *, step: int, finished: bool) -> None:
        assert finished
        self.reads += 1
        self.time += timeout_s
        while self.arriving and self.arriving[0] <= self.time:
            self.arriving.pop(0)
            self.waiting += 1

    def send_ledger_head(self, *, step: int, finished: bool) -> None:
        self.heads.append(finished)

    def peers_since(self, moment: float) -> frozenset[bytes]:
        assert self.time - 900.0 < moment
        names = range(self.recent_peers) if moment < 1_000.0 else self.back
        return frozenset(bytes([name]) for name in names)

    @property
    def network(self) -> Swarm:
        return self

    @property
    def status(self) -> Swarm:
        return self

    @property
    def peers(self) -> tuple[tuple[str, int], ...]:
        return (("validator", 3), ("volunteer", 2 if self.returns_at <= self.time < self.leaves_at else 1))

    def end(self, stop_at: float = float("inf"), *, ran_s: float = 0.0) -> float:
        """Shut down `ran_s` after the start; returns the seconds it took."""
        part = cast(Any, self)
        shutdown = Shutdown(part, part, part, part, part, self.notices.append)
        self.time += ran_s
        began = self.time
        shutdown.announce_end(step=7, is_stopped=lambda: self.time - began >= stop_at)
        return self.time - began


def test_what_is_stored_is_checked_and_messages_are_answered_in_between() -> None:
    swarm = Swarm(waiting=40, replay_s=2.0)
    assert swarm.end() == pytest.approx(80.0 + 6.0, abs=0.5)
    assert swarm.waiting == 0
    assert not swarm.notices
    assert swarm.reads > 40
    assert len(swarm.heads) > 40
    assert all(swarm.heads)


def test_hours_of_replays_are_left_in_the_journal() -> None:
    swarm = Swarm(waiting=100_000, replay_s=1.0)
    assert 300.0 <= swarm.end() <= 300.0 + 15.0 + 15.0 + 3.0
    assert swarm.waiting > 99_000
    assert [notice.split(" group")[0] for notice in swarm.notices] == [f"{swarm.waiting:,} delivered"]


def test_volunteers_that_deliver_all_the_time_leave_nothing_unsettled() -> None:
    swarm = Swarm(waiting=16, replay_s=0.1)
    swarm.arriving = [swarm.time + 0.1 * n for n in range(1, 10_000)]
    assert 300.0 <= swarm.end() <= 300.0 + 15.0 + 15.0 + 3.0
    assert swarm.waiting == 0
    assert swarm.arriving, "they would arrive without end"


def test_a_group_that_arrives_late_is_settled_and_waited_for() -> None:
    swarm = Swarm(waiting=0, replay_s=0.1)
    swarm.arriving = [swarm.time + 4.0]
    assert swarm.end() == pytest.approx(4.0 + 6.0, abs=0.6)
    assert swarm.waiting == 0


def test_groups_that_keep_arriving_are_settled_and_no_more_is_read() -> None:
    swarm = Swarm(waiting=0, replay_s=0.01)
    swarm.arriving = [swarm.time + 0.05 * n for n in range(1, 1_000)]
    assert 15.0 <= swarm.end() <= 15.0 + 5.0
    assert swarm.waiting == 0
    assert swarm.arriving, "they would arrive without end"


@pytest.mark.parametrize("waiting", [0, 1_000])
def test_a_stop_ends_it_at_once(waiting: int) -> None:
    assert Swarm(waiting=waiting, replay_s=1.0).end(stop_at=3.0) <= 3.0 + 1.2


def test_volunteers_at_work_before_a_restart_are_waited_for() -> None:
    swarm = Swarm(waiting=0, replay_s=0.0)
    swarm.recent_peers, swarm.returns_at = 2, swarm.time + 30.0
    assert swarm.end() == pytest.approx(30.0 + 6.0, abs=0.5)
    assert len(swarm.heads) >= 30, "one that comes back must hear of the end"


def test_a_volunteer_that_came_back_and_left_is_not_waited_for() -> None:
    swarm = Swarm(waiting=0, replay_s=0.0)
    swarm.recent_peers, swarm.returns_at, swarm.leaves_at = 2, swarm.time + 10.0, swarm.time + 12.0
    assert swarm.end() == pytest.approx(10.0 + 6.0, abs=0.5)


@pytest.mark.parametrize(
    ("back", "seconds"), [((), 66.0), ((1,), 66.0), ((0, 1), 6.0), ((0, 1, 7), 6.0), ((1, 7, 8), 66.0)]
)
def test_volunteers_that_deliver_over_other_peers_are_back_and_newcomers_stand_for_none(
    back: tuple[int, ...], seconds: float
) -> None:
    swarm = Swarm(waiting=0, replay_s=0.0)
    swarm.recent_peers, swarm.back = 2, back
    assert swarm.end() == pytest.approx(seconds, abs=0.5)


@pytest.mark.parametrize(("ran_s", "expected_s"), [(0.0, 66.0), (40.0, 26.0), (60.0, 6.0), (600.0, 6.0)])
def test_volunteers_that_left_are_not_waited_for_longer_than_a_minute(ran_s: float, expected_s: float) -> None:
    swarm = Swarm(waiting=0, replay_s=0.0)
    swarm.recent_peers = 2
    assert swarm.end(ran_s=ran_s) == pytest.approx(expected_s, abs=0.5)


def test_a_stop_ends_the_wait_for_volunteers() -> None:
    swarm = Swarm(waiting=0, replay_s=0.0)
    swarm.recent_peers = 2
    assert swarm.end(stop_at=3.0) <= 3.0 + 0.5


@pytest.mark.parametrize(("slices", "seconds"), [(10, 6.0), (100, 20.0), (10_000, 120.0)])
def test_the_last_evaluation_is_waited_for_but_not_for_ever(slices: int, seconds: float) -> None:
    swarm = Swarm(waiting=0, replay_s=0.1)
    swarm.slices = slices
    assert swarm.end() == pytest.approx(seconds, abs=0.5)
