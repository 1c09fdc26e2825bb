"""Plans of a run in progress: the paces of its volunteers are found again from its journal and metrics."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from p2prl.errors import ConfigError, MachineError
from p2prl.learner.journal.deliveries import Deliveries, Delivery, read_deliveries
from p2prl.planning.fleet import PlannedRun
from p2prl.planning.fleet_advice import advise
from p2prl.planning.observed_run import LEAST_UPDATES, ObservedRun, newest_updates, observed_run
from p2prl.planning.queue_simulation import PACE_LIMIT
from p2prl.planning.run_reading import read_observed
from p2prl.planning.utilization_forecast import forecast
from p2prl.scoreboard.display_names import display_name
from tests.unit.learner.small_run import NOW, identity
from tests.unit.planning.observed_folder import GROUPS, INTERVAL_S, PACES, UPDATE_S, metrics_line, write_run

UPDATES = 200
ENDS = NOW + UPDATES * INTERVAL_S


def seen(
    groups: Iterable[Delivery], *, published: dict[int, float] | None = None, replay_per_s: float | None = None
) -> ObservedRun:
    """What is observed of these groups in 200 updates of twenty seconds."""
    replay = {} if replay_per_s is None else {"replay/groups_per_s": replay_per_s}
    lines = [metrics_line(step, NOW + step * INTERVAL_S, **replay) for step in range(UPDATES + 1)]
    ordered = tuple(sorted(groups, key=lambda each: each.arrived))
    return observed_run(
        newest_updates(lines),
        Deliveries(groups=ordered, expired=0, published=published or {}),
        run=PlannedRun(model="", staleness=64),
        name_of=lambda peer: peer.decode(),
    )


def steady(peer: str, every_s: float, *, begins: float = NOW, ends: float = ENDS, burst: int = 1) -> list[Delivery]:
    """A group every so many seconds, or several at once as rarely."""
    times = [
        begins + number * every_s * burst for number in range(1, math.floor((ends - begins) / every_s / burst) + 1)
    ]
    return [Delivery(peer.encode(), 0, at, passed=True) for at in times for _ in range(burst)]


def swarm(paces: Sequence[float]) -> list[Delivery]:
    return [each for number, pace in enumerate(paces) for each in steady(f"{number}", pace)]


def test_rates_and_utilization_of_steady_volunteers_are_found_again() -> None:
    found = seen(swarm([10.0, 15.0, 30.0]))
    assert [machine.group_s for machine in found.machines] == pytest.approx([10.0, 15.0, 30.0], rel=0.01)
    assert [row.name for row in found.fleet.machines] == ["0", "1", "2"]
    assert all(machine.share_of_time == 1.0 for machine in found.machines)
    assert found.realized == pytest.approx(UPDATE_S / INTERVAL_S)
    capacity = found.capacity(found.fleet)
    assert capacity.update.total_s == pytest.approx(UPDATE_S)
    assert capacity.capacity.utilization == pytest.approx(found.realized, abs=0.01)
    expected = forecast(capacity.machines, capacity.demand, updates=40)
    assert expected.low - 0.02 <= found.realized <= expected.high + 0.02


def test_bursts_are_no_absences() -> None:
    (machine,) = seen(steady("a", 15.0, burst=16)).machines
    assert machine.share_of_time == 1.0
    assert machine.group_s == pytest.approx(15.0, rel=0.1)


def test_unsteady_flows_have_a_wider_spread() -> None:
    rng = random.Random(1)
    times, at = [], NOW
    while at < ENDS:
        at += rng.expovariate(1 / 20.0)
        times.append(Delivery(b"a", 0, at, passed=True))
    (random_flow,), (regular,) = seen(times[:-1]).machines, seen(steady("a", 20.0)).machines
    assert regular.spread < 0.3 < random_flow.spread


def test_absences_are_told_from_slowness() -> None:
    there = [steady("a", 10.0, begins=NOW + at, ends=NOW + at + 500.0) for at in range(0, 4000, 1000)]
    (machine,) = seen([each for part in there for each in part]).machines
    assert machine.share_of_time == pytest.approx(0.5, abs=0.05)
    assert machine.session_s == pytest.approx(500.0, rel=0.05)
    assert machine.group_s == pytest.approx(10.0, rel=0.05)


def test_who_has_left_is_counted_apart_and_who_has_come_at_its_own_pace() -> None:
    left, came = steady("left", 10.0, ends=NOW + 1000.0), steady("came", 20.0, begins=ENDS - 1000.0)
    found = seen([*left, *came])
    assert ([row.name for row in found.fleet.machines], found.left) == (["came"], 1)
    assert found.machines[0].group_s == pytest.approx(20.0, rel=0.05)
    assert found.machines[0].share_of_time == 1.0


def test_a_version_is_as_late_as_the_first_group_of_it() -> None:
    published = {version: NOW + 400.0 * version for version in range(10)}
    groups = [
        Delivery(b"a", version, published[version] + 90.0 + 10.0 * number, passed=True)
        for version in range(10)
        for number in range(40)
        if published[version] + 90.0 + 10.0 * number < ENDS
    ]
    (machine,) = seen(groups, published=published).machines
    assert machine.version_delay_s + machine.group_s == pytest.approx(90.0, abs=1.0)


def test_rejected_groups_are_named_and_bring_nothing() -> None:
    bad = [Delivery(b"0", 0, NOW + 100.0 * number + 1, passed=False) for number in range(30)]
    found = seen([*steady("0", 20.0), *bad])
    assert found.machines[0].group_s == pytest.approx(20.0, rel=0.01)
    assert found.sources == ("200 verified groups, 30 rejected",)
    with pytest.raises(ConfigError, match="no volunteer"):
        seen(bad)


def test_the_slowest_of_many_are_one_row_and_nothing_is_lost() -> None:
    paces = [20.0 + number for number in range(60)]
    found = seen(swarm(paces))
    assert len(found.fleet.machines) == 24
    assert sum(row.count for row in found.fleet.machines) == 60
    assert found.capacity(found.fleet).capacity.sampled_per_s == pytest.approx(
        sum(1 / each for each in paces), rel=0.02
    )


def test_slow_replays_are_the_bottleneck_of_a_swarm_that_brings_enough() -> None:
    flow = swarm([10.0] * 6)  # .6 a second of .4 that training can use
    free, tight = seen(flow), seen(flow, replay_per_s=0.2)
    assert free.capacity(free.fleet).capacity.saturated
    assert tight.capacity(tight.fleet).capacity.utilization == pytest.approx(0.5)
    advice = advise(tight.fleet, tight.capacity, more_of=[tight.usual_row])
    assert (advice.bottleneck, "50 %" in advice.sentence) == ("replay", True)
    found = tight.capacity(tight.fleet)
    simulated = forecast(found.machines, found.demand, updates=60)
    assert simulated.utilization == pytest.approx(0.5, abs=0.03)


def test_more_volunteers_like_the_usual_one_are_advised() -> None:
    found = seen(swarm([10.0, 20.0, 40.0]))
    assert found.fleet.machines[found.usual_row].name == "1"
    changes = {change.setting: change.text for change in advise(found.fleet, found.capacity, more_of=[1]).changes}
    assert changes["count"] == "5 more like 1 (6 machines)"  # .175 of .4 a second, and .05 each


def test_other_settings_change_the_time_of_an_update() -> None:
    found = seen(swarm([10.0]))
    run = found.fleet.run
    assert (run.groups_per_update, run.publish_every) == (GROUPS, 2)
    double = found.capacity(
        replace(found.fleet, run=replace(run, groups_per_update=2 * GROUPS, publish_every=4))
    ).update
    assert double.training_s == pytest.approx(2 * 0.4 * INTERVAL_S)
    assert double.copying_s == pytest.approx(0.1 * INTERVAL_S / 2)


def test_only_updates_since_the_learners_start_count_and_not_the_first() -> None:
    before = [metrics_line(step, NOW + step * INTERVAL_S) for step in range(50)]
    after = [metrics_line(step, NOW + 5000.0 + step * INTERVAL_S) for step in range(50, 50 + LEAST_UPDATES + 1)]
    assert [each["step"] for each in newest_updates([*before, *after])] == [51 + n for n in range(LEAST_UPDATES)]
    with pytest.raises(ConfigError, match=f"has {LEAST_UPDATES - 1} updates since"):
        newest_updates([*before, *after[:-1]])
    recomputed = {key: value for key, value in before[0].items() if not key.startswith("training/")}
    assert len(newest_updates([recomputed, *before])) == 49


def test_a_run_folder_is_read(tmp_path: Path) -> None:
    title, found, pace_limit = read_observed(write_run(tmp_path))
    assert pace_limit == PACE_LIMIT
    (tmp_path / "run.toml").write_text("[learner]\npace_limit = 1\n")
    assert read_observed(tmp_path)[2] == 1.0
    assert title.startswith("unit, ")
    names = [display_name(identity(peer).public_key) for peer in PACES]
    assert [row.name for row in found.fleet.machines] == names, "no stranger, no forger"
    assert [machine.group_s for machine in found.machines] == pytest.approx(list(PACES.values()), rel=0.05)
    assert found.realized == pytest.approx(0.5)
    assert found.fleet.run.staleness == 4
    assert found.expired_share == pytest.approx(10 / (10 + 10 + 256), abs=0.01)


def test_a_missing_journal_is_told(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="cannot be read"):
        read_deliveries(tmp_path / "journal.db", since=0.0)
