"""Publish interval: against the rule tried for every κ, and on simulated swarms of known speed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.learner.timing.next_update import Action
from p2prl.learner.timing.publish_interval import PublishInterval, PublishIntervalConfig, choose
from tests.unit.learner.scripted_swarm import PEERS, ScriptedSwarm, fresh_runs, make_learner
from tests.unit.learner.small_run import NOW

CONFIG = PublishIntervalConfig(staleness_bound=32, least=1, most=64)
seconds = st.floats(0.01, 1e4)


@given(seconds, st.floats(0.0, 1e5), st.floats(0.0, 1e5), st.integers(0, 200), st.integers(1, 8))
def test_the_smallest_interval_that_fits_is_chosen(
    train_s: float, broadcast_s: float, queue_s: float, bound: int, least: int
) -> None:
    config = PublishIntervalConfig(staleness_bound=bound, least=least, most=64)
    choice = choose(config, train_s=train_s, broadcast_s=broadcast_s, queue_s=queue_s)
    room = bound - math.ceil(broadcast_s / train_s) - math.ceil(queue_s / train_s)
    fitting = [k for k in range(least, 65) if broadcast_s / train_s < k <= room]
    assert least <= choice.publish_every <= 64
    assert choice.feasible == bool(fitting)
    if fitting:
        assert choice.publish_every == fitting[0]
    else:
        assert choice.publish_every <= max(least, room), "never past what is still in time"


def swarm(interval: PublishInterval, *, train_s: float, delays: list[float], updates: int) -> list[int]:
    """A learner of one update every `train_s`, and peers whose first group of a version comes after their delay."""
    now, version, behind, chosen = 0.0, -1, 10**9, []
    arrivals: list[tuple[float, bytes, int]] = []
    for _ in range(updates):
        if behind >= interval.choice.publish_every:
            version, behind = version + 1, 0
            interval.published(version, now)
            arrivals += [(now + delay, bytes([peer]), version) for peer, delay in enumerate(delays)]
        now += train_s
        behind += 1
        interval.updated(now)
        for at, peer, of in sorted(arrivals):
            if at <= now:
                interval.delivered(peer, of, at)
        arrivals = [arrival for arrival in arrivals if arrival[0] > now]
        chosen.append(interval.choice.publish_every)
    return chosen


@pytest.mark.parametrize(
    ("delays", "expected"),
    [([2.0] * 10, 1), ([35.0] * 10, 4), ([35.0] * 19 + [300.0], 4), ([2.0] * 10 + [65.0] * 10, 7)],
)
def test_interval_fits_nearly_all_peers(delays: list[float], expected: int) -> None:
    assert swarm(PublishInterval(CONFIG, publish_every=2), train_s=10.0, delays=delays, updates=120)[-1] == expected


def test_interval_follows_a_faster_swarm() -> None:
    interval = PublishInterval(CONFIG, publish_every=1)
    assert swarm(interval, train_s=10.0, delays=[75.0] * 5, updates=100)[-1] == 8
    for peer in range(5):  # replaced by faster peers
        interval.delivered(bytes([peer]), 0, 1000.0)
    now = 10_000.0
    for version in range(100, 120):
        interval.published(version, now)
        for peer in range(10, 15):
            interval.delivered(bytes([peer]), version, now + 5.0)
        now += 10.0
        interval.updated(now)
    assert interval.choice.publish_every == 1


def test_nothing_changes_before_it_is_measured() -> None:
    interval = PublishInterval(CONFIG, publish_every=5)
    interval.published(0, 0.0)
    interval.delivered(b"a", 0, 500.0)
    interval.updated(1.0)
    assert interval.choice.publish_every == 5


def test_infeasible_bound_keeps_work_in_time() -> None:
    tight = PublishIntervalConfig(staleness_bound=6, least=1, most=64)
    choice = choose(tight, train_s=1.0, broadcast_s=5.0, queue_s=0.0)
    assert not choice.feasible
    assert choice.publish_every == 1


@pytest.mark.parametrize(("publish", "then"), [("auto", Action.COLLECT), ("manifest", Action.PUBLISH)])
def test_the_measured_interval_is_used_where_the_settings_allow_it(publish: str, then: Action, tmp_path: Path) -> None:
    notices: list[str] = []
    with fresh_runs(tmp_path) as fresh:
        small_run = fresh("run")
        swarm = ScriptedSwarm(small_run, lambda: make_learner(small_run, publish=publish, on_notice=notices.append))
        interval = swarm.learner._pacing._interval
        for version in range(-4, 0):  # measured earlier: one and a half updates until a version is everywhere
            interval.published(version, NOW + 10.0 * version)
            interval.updated(NOW + 10.0 * version)
            interval.delivered(PEERS[0].public_key, version, NOW + 10.0 * version + 15.0)
        while swarm.turn() is not Action.STEP:
            pass
        assert swarm.learner._pacing.next_action(0) is then
        expected = ["publishing a version every 2 updates"] if publish == "auto" else []
        assert [notice[: len("publishing a version every 2 updates")] for notice in notices] == expected
        swarm.learner.close()
