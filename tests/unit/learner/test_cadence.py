"""How often to publish, against the rule tried for every κ, and on simulated swarms of known speed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.learner.publish_interval import PublishInterval, PublishIntervalConfig, choose
from p2prl.learner.schedule import Action
from tests.unit.learner.test_learner_resume import PEERS, Swarm, learner
from tests.unit.learner.world import NOW, World

CONFIG = PublishIntervalConfig(staleness_bound=32, least=1, most=64)
seconds = st.floats(0.01, 1e4)


@given(seconds, st.floats(0.0, 1e5), st.floats(0.0, 1e5), st.integers(0, 200), st.integers(1, 8))
def test_the_smallest_cadence_that_fits_is_chosen(
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


def swarm(cadence: PublishInterval, *, train_s: float, delays: list[float], updates: int) -> list[int]:
    """A learner of one update every `train_s`, and peers whose first group of a version comes after their delay."""
    now, version, behind, chosen = 0.0, -1, 10**9, []
    arrivals: list[tuple[float, bytes, int]] = []
    for _ in range(updates):
        if behind >= cadence.choice.publish_every:
            version, behind = version + 1, 0
            cadence.published(version, now)
            arrivals += [(now + delay, bytes([peer]), version) for peer, delay in enumerate(delays)]
        now += train_s
        behind += 1
        cadence.updated(now)
        for at, peer, of in sorted(arrivals):
            if at <= now:
                cadence.delivered(peer, of, at)
        arrivals = [arrival for arrival in arrivals if arrival[0] > now]
        chosen.append(cadence.choice.publish_every)
    return chosen


@pytest.mark.parametrize(
    ("delays", "expected"),
    [([2.0] * 10, 1), ([35.0] * 10, 4), ([35.0] * 19 + [300.0], 4), ([2.0] * 10 + [65.0] * 10, 7)],
)
def test_it_settles_on_what_nearly_all_peers_need(delays: list[float], expected: int) -> None:
    assert swarm(PublishInterval(CONFIG, publish_every=2), train_s=10.0, delays=delays, updates=120)[-1] == expected


def test_it_follows_a_swarm_that_becomes_faster() -> None:
    cadence = PublishInterval(CONFIG, publish_every=1)
    assert swarm(cadence, train_s=10.0, delays=[75.0] * 5, updates=100)[-1] == 8
    for peer in range(5):  # they left, and faster ones came
        cadence.delivered(bytes([peer]), 0, 1000.0)
    now = 10_000.0
    for version in range(100, 120):
        cadence.published(version, now)
        for peer in range(10, 15):
            cadence.delivered(bytes([peer]), version, now + 5.0)
        now += 10.0
        cadence.updated(now)
    assert cadence.choice.publish_every == 1


def test_nothing_is_chosen_before_it_is_measured() -> None:
    cadence = PublishInterval(CONFIG, publish_every=5)
    cadence.published(0, 0.0)
    cadence.delivered(b"a", 0, 500.0)
    cadence.updated(1.0)
    assert cadence.choice.publish_every == 5


def test_a_bound_too_small_is_said_and_the_work_stays_in_time() -> None:
    tight = PublishIntervalConfig(staleness_bound=6, least=1, most=64)
    choice = choose(tight, train_s=1.0, broadcast_s=5.0, queue_s=0.0)
    assert not choice.feasible
    assert choice.publish_every == 1


@pytest.mark.parametrize(("publish", "then"), [("auto", Action.COLLECT), ("manifest", Action.PUBLISH)])
def test_a_learner_follows_its_measurements_where_its_settings_let_it(
    tmp_path: Path, publish: str, then: Action
) -> None:
    world = World(tmp_path)
    world.journal.close()  # the learner under test owns it
    notices: list[str] = []
    running = Swarm(world, lambda: learner(world, publish=publish))
    running.learner._on_notice = notices.append
    for version in range(-4, 0):  # measured earlier: one and a half updates until a version is everywhere
        running.learner._cadence.published(version, NOW + 10.0 * version)
        running.learner._cadence.updated(NOW + 10.0 * version)
        running.learner._cadence.delivered(PEERS[0].public_key, version, NOW + 10.0 * version + 15.0)
    while running.turn() is not Action.STEP:
        pass
    assert running.learner._epochs.next_action(0) is then
    assert [notice.startswith("a version every 2 updates") for notice in notices] == [True] * (publish == "auto")
    running.learner.close()
    world.blobs.close()
