"""Pace of updates, and the bias of what is lost."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.learner.intake.lost_work import GroupFacts, LostWork
from p2prl.learner.timing.live_forecast import Forecaster
from p2prl.learner.timing.next_update import Action, Pacing, Schedule, ScheduleConfig, pause_s
from p2prl.learner.timing.publish_interval import PublishInterval, PublishIntervalConfig
from p2prl.protocol.rollout_group import Completion, EngineClass, RolloutGroup


@pytest.mark.parametrize(
    ("update_s", "sampling_s", "bound", "limit", "expected"),
    [
        (2.0, 10.0, 128, 0.25, 0.0),  # ten seconds are five updates, of 64
        (2.0, 160.0, 64, 4.0, 3.0),  # an update every 5 s makes them 32 old
        (2.0, 160.0, 64, 0.25, 0.5),
        (2.0, 160.0, 64, 0.0, 0.0),
        (2.0, 2.5, 1, 4.0, 0.5),  # a bound of 1 still allows one update
        (2.0, 2.5, 0, 4.0, 0.5),
        (0.0, 160.0, 64, 4.0, 0.0),  # virtual time
    ],
)
def test_pause(update_s: float, sampling_s: float, bound: int, limit: float, expected: float) -> None:
    assert pause_s(update_s, sampling_s=sampling_s, staleness_bound=bound, limit=limit) == pytest.approx(expected)


@given(st.floats(0.01, 100), st.floats(0, 1e6), st.integers(2, 1000), st.floats(0, 4))
def test_a_pause_is_no_longer_than_it_helps_and_than_its_limit(
    update_s: float, sampling_s: float, bound: int, limit: float
) -> None:
    pause = pause_s(update_s, sampling_s=sampling_s, staleness_bound=bound, limit=limit)
    assert 0.0 <= pause <= limit * update_s
    age = sampling_s / (update_s + pause)
    if 0.0 < pause < limit * update_s * 0.999:
        assert age == pytest.approx(bound / 2, rel=1e-6)


class SetClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time


def test_the_next_update_waits_for_the_pause_and_nothing_else_does() -> None:
    clock = SetClock()
    schedule = Schedule(ScheduleConfig(groups_per_update=2, publish_every=2, updates=9), step=0, published_step=0)
    interval = PublishInterval(PublishIntervalConfig(staleness_bound=8, least=2, most=9), publish_every=2)
    pacing = Pacing(
        schedule,
        interval,
        Forecaster(groups_per_update=2),
        clock,
        automatic=False,
        pause=lambda update_s: 0.25 * update_s,
        on_notice=lambda _: None,
    )
    assert (pacing.next_action(2), pacing.pause_left_s) == (Action.STEP, 0.0)
    pacing.batch_trained([], 4.0, at_work=1.0, ready_groups=0)
    assert (pacing.next_action(2), pacing.pause_left_s) == (Action.COLLECT, 1.0)
    assert pacing.figures == {"publish_every": 2, "pause_s": 1.0}
    clock.time += 1.0
    assert (pacing.next_action(2), pacing.pause_left_s) == (Action.STEP, 0.0)
    pacing.batch_trained([], 4.0, at_work=1.0, ready_groups=0)
    assert pacing.next_action(2) is Action.PUBLISH, "a version that is due goes out at once"


def facts(tokens: float = 4.0, seconds: float = 1.0, reward: float = 0.5, peer: bytes = b"a") -> GroupFacts:
    return GroupFacts(tokens, seconds, peer, reward)


def test_nothing_lost_is_nothing_to_compare() -> None:
    work = LostWork()
    assert work.figures == {"lost/groups": 0}
    work.trained(facts())
    assert work.figures == {"lost/groups": 0, "lost/share": 0.0}
    assert LostWork().sampling_s == 0.0


def test_what_is_lost_is_compared_with_what_is_trained_on() -> None:
    work = LostWork()
    for _ in range(3):
        work.trained(facts(tokens=4.0, seconds=2.0, reward=0.75))
    work.lost(facts(tokens=10.0, seconds=9.0, reward=0.25))
    assert work.figures == {
        "lost/groups": 1,
        "lost/share": 0.25,
        "lost/tokens_ratio": 2.5,
        "lost/seconds_ratio": 4.5,
        "lost/reward_difference": -0.5,
    }


def test_old_work_is_forgotten_but_counted() -> None:
    work = LostWork()
    for _ in range(600):
        work.lost(facts(tokens=100.0))
    for _ in range(512):
        work.trained(facts())
    assert work.figures["lost/groups"] == 600
    assert work.figures["lost/share"] == 0.0
    for _ in range(512):
        work.lost(facts(tokens=2.0))
    assert work.figures["lost/tokens_ratio"] == 0.5


@pytest.mark.parametrize(("claim", "seconds", "reward"), [(1.7e308, 604_800.0, 1e6), (-1.7e308, 0.0, -1e6)])
def test_claims_beyond_reason_count_as_the_largest_possible(claim: float, seconds: float, reward: float) -> None:
    completion = Completion(bytes(8), bytes(4), True, claim)
    group = RolloutGroup(
        0, bytes(32), 0, "chain4", bytes(4), (completion,) * 4, EngineClass("", "", "", ""), claim, b""
    )
    group.check()
    found = GroupFacts.of(group, b"a")
    assert found == GroupFacts(2.0, seconds, b"a", reward)
    work = LostWork()
    for _ in range(512):
        work.lost(found)
        work.trained(found)
    assert all(map(math.isfinite, work.figures.values()))
    assert work.sampling_s == seconds


def test_the_pace_ignores_what_strangers_say_and_the_slowest_tenth_of_the_peers() -> None:
    work = LostWork()
    for number in range(1, 11):
        for seconds in (1.0, float(number), 0.5):
            work.trained(facts(seconds=seconds, peer=bytes([number])))
    assert work.sampling_s == 0.0, "nothing is lost"
    for _ in range(100):
        work.lost(facts(seconds=1e9, peer=b"stranger"))
    assert work.sampling_s == 0.0
    work.lost(facts(seconds=2.5, peer=bytes([2])))
    assert work.sampling_s == 10.0
    work.trained(facts(seconds=99.0, peer=bytes([11])))
    assert work.sampling_s == 10.0
    work.lost(facts(seconds=50.0, peer=bytes([10])))
    assert work.sampling_s == 50.0, "a peer's lost groups count, once some are trained on"
    for _ in range(512):
        work.trained(facts(peer=bytes([10])))
    assert work.sampling_s == 0.0, "nothing has been lost lately"
