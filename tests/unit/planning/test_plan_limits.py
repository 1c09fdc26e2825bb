"""Ranges of a planned fleet: what lies at an end of one passes, and what lies beyond is refused by name."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from p2prl.errors import ConfigError
from p2prl.learner.timing.capacity import Demand, SamplingMachine
from p2prl.planning.fleet import Fleet, MachineRow, PlannedLearner, PlannedRun
from p2prl.planning.queue_simulation import QueueConfig

TINY = 1e-300
"""Above 0 by as little as it takes."""

RUN, LEARNER = PlannedRun(staleness=8), PlannedLearner(card="h100")
MACHINE = MachineRow(name="home", card="rtx3060")
RANGES: list[tuple[Any, str, tuple[float, ...], tuple[float, ...]]] = [
    (RUN, "group_size", (1, 64), (0, 65)),
    (RUN, "groups_per_update", (1, 4096), (0, 4097)),
    (RUN, "prompt_tokens", (0, 131_072), (-1, 131_073)),
    (RUN, "completion_tokens", (1, 32_768), (0, 32_769)),
    (RUN, "length_spread", (0.0, 2.0), (-TINY, 2.001)),
    (RUN, "publish_every", (1, 9), (0, 10)),
    (replace(RUN, publish_every=1), "staleness", (1,), (0,)),
    (LEARNER, "update_s", (0.0, 1e6), (-TINY, 1e6 + 1)),
    (LEARNER, "replay_s", (0.0, 1e6), (-TINY, 1e6 + 1)),
    (LEARNER, "upload_mbit", (TINY, 1e6), (0.0, 1e6 + 1)),
    (MACHINE, "count", (1, 5000), (0, 5001)),
    (MACHINE, "slots", (0, 256), (-1, 257)),
    (replace(MACHINE, card="", tokens_per_s=1.0), "tokens_per_s", (TINY, 1e9), (-TINY, 1e9 + 1)),
    (MACHINE, "download_mbit", (TINY, 1e6), (0.0, 1e6 + 1)),
    (MACHINE, "upload_mbit", (TINY, 1e6), (0.0, 1e6 + 1)),
    (MACHINE, "session_hours", (0.01, 1e5), (0.0099, 1e5 + 1)),
    (MACHINE, "price", (TINY, 1e6), (0.0, 1e6 + 1)),
    (MACHINE, "share_of_time", (TINY, 1.0), (0.0, 1.001)),
    (MACHINE, "acceptance", (TINY, 1.0), (0.0, 1.001)),
]


@pytest.mark.parametrize(("table", "name", "legal", "illegal"), RANGES)
def test_the_ends_of_a_range(table: Any, name: str, legal: tuple[float, ...], illegal: tuple[float, ...]) -> None:
    for value in legal:
        assert getattr(replace(table, **{name: value}), name) == value
    for value in illegal:
        with pytest.raises(ConfigError, match=name):
            replace(table, **{name: value})


def test_a_row_that_counts_no_machines_is_one_machine() -> None:
    assert Fleet(learner=LEARNER, machines=(MACHINE,) * 3) == Fleet(
        learner=LEARNER, machines=(replace(MACHINE, count=1),) * 3
    )


def test_all_machines_together_are_bounded() -> None:
    Fleet(learner=LEARNER, machines=(replace(MACHINE, count=2500),) * 2)
    for machines in ((), (replace(MACHINE, count=2500), replace(MACHINE, count=2501))):
        with pytest.raises(ConfigError, match="count of all machines"):
            Fleet(learner=LEARNER, machines=machines)


DEMAND = Demand(groups_per_update=4, update_s=10.0, staleness_bound=16, publish_every=2)


def test_a_simulated_queue_is_bounded() -> None:
    machine = SamplingMachine(group_s=1.0)
    config = QueueConfig(machines=(machine,), demand=DEMAND)
    for updates in (1, 100_000):
        replace(config, updates=updates)
    for staleness in (1, 10_000):
        replace(config, demand=replace(DEMAND, staleness_bound=staleness, publish_every=1))
    for group_s in (TINY, 0.99e9):
        replace(config, machines=(replace(machine, group_s=group_s),))
    for wrong, name in (
        ({"updates": 0}, "updates"),
        ({"updates": 100_001}, "updates"),
        ({"demand": replace(DEMAND, staleness_bound=0)}, "staleness_bound"),
        ({"demand": replace(DEMAND, staleness_bound=10_001)}, "staleness_bound"),
        ({"machines": (replace(machine, group_s=0.0),)}, "group_s"),
        ({"machines": (replace(machine, group_s=1e9),)}, "group_s"),
        ({"machines": (replace(machine, share_of_time=0.0, session_s=1.0),)}, "share_of_time"),
        ({"machines": (replace(machine, share_of_time=1.001),)}, "share_of_time"),
        ({"machines": (replace(machine, share_of_time=0.5, session_s=math.inf),)}, "session_s"),
    ):
        with pytest.raises(ConfigError, match=name):
            replace(config, **wrong)
