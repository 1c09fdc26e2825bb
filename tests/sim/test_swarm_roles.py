"""Whole swarms with the real learner and volunteers on virtual time: reproducible traces, recovery from faults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from p2prl.learner.journal.journal import Journal
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.sim import simulated_run
from p2prl.sim.swarm import Swarm
from p2prl.sim.swarm_config import SwarmConfig, SwarmResult

CONFIG = SwarmConfig(volunteers=6, updates=6, step_seconds=20.0, seed=11)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:  # no test here asks for the reward
        patch.setattr(simulated_run, "_EVALUATION_PROMPTS", 8)
        yield
    torch.set_num_threads(before)


def simulate(config: SwarmConfig, folder: Path) -> SwarmResult:
    folder.mkdir()
    return Swarm(config, tiny_model("chain4", seed=1), folder).run(on_progress=lambda _: None)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> SwarmResult:
    """The run of `CONFIG`."""
    return simulate(CONFIG, tmp_path_factory.mktemp("first") / "run")


def test_trace_depends_on_the_seed_only(first: SwarmResult, tmp_path: Path) -> None:
    again = simulate(CONFIG, tmp_path / "again")
    other = simulate(replace(CONFIG, seed=12), tmp_path / "other")
    assert first == again
    assert first.trace_hash != other.trace_hash
    assert first.updates == CONFIG.updates
    assert first.groups_rejected == 0
    assert first.groups_verified >= CONFIG.updates * 16


def test_delayed_groups_raise_staleness(first: SwarmResult, tmp_path: Path) -> None:
    slow = simulate(replace(CONFIG, delay="const:90"), tmp_path / "slow")
    assert slow.updates == CONFIG.updates
    # 90 s are four and a half updates of 20 s: no group can be fresher once the first ones have arrived.
    assert slow.staleness[2] >= 4
    assert slow.staleness[0] > first.staleness[0]


def test_partition_heals(tmp_path: Path) -> None:
    cut = simulate(replace(CONFIG, updates=10, partition=(40.0, 140.0)), tmp_path / "cut")
    assert cut.updates == 10
    assert cut.groups_rejected == 0
    assert 0 <= cut.caught_up_s <= 300, "every volunteer, in both halves, holds the last version"


def test_restarted_volunteers_repeat_no_slot(tmp_path: Path) -> None:
    result = simulate(replace(CONFIG, updates=10, crashes=4, loss=0.02), tmp_path / "crash")
    assert result.updates == 10
    assert result.groups_rejected == 0, "a restarted volunteer repeats no slot with other tokens"
    journal = Journal(tmp_path / "crash" / "learner" / "journal.db")
    used = [digest for step in range(10) for digest in journal.batches.at_step(step) or []]
    journal.close()
    assert len(used) == len(set(used)) == 10 * 16
