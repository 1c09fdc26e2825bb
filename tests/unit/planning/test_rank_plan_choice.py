"""`plan = "auto"`: one profile a host, the fastest plan that fits, and what is kept beside the run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from p2prl.config.new_run import RunFolder, init_run
from p2prl.config.presets import preset_by_name
from p2prl.errors import ConfigError, MachineError
from p2prl.learner.new_run_plan import RunPlan
from p2prl.learner.training.parallel_config import ParallelConfig
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.planning import rank_plan_choice
from p2prl.planning.rank_plan_choice import with_host_plan
from p2prl.planning.rank_plan_record import choice_lines, read_choice
from p2prl.planning.rank_plans import Probe, profile_timings
from p2prl.planning.rank_profile import Host, Timed

SECONDS = {"1": 4.0, "dp2": 3.0, "pp2": 1.0}
"""Of every short training; tp2 is not timed."""


class FakeProfile:
    """Answers with given times, and counts."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.asked: list[list[str]] = []
        self._seconds = seconds

    def __call__(self, host: Host, plans: Iterable[ParallelConfig], *, row_tokens: int) -> Timed:
        plans = list(plans)
        self.asked.append([plan.name for plan in plans])
        probes = [
            Probe(plan=each.plan, work=each.work, seconds=self._seconds[plan.name] * (1.1 if plan.zero == 3 else 1.0))
            for plan in plans
            if plan.name in self._seconds
            for each in profile_timings(plan, layers=2, row_tokens=row_tokens)
        ]
        return Timed(probes=probes, seconds=12.0)


@pytest.fixture
def profile(monkeypatch: pytest.MonkeyPatch) -> FakeProfile:
    fake = FakeProfile(SECONDS)
    monkeypatch.setattr(rank_plan_choice, "profile", fake)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(rank_plan_choice, "use_threads", lambda threads: None)
    return fake


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = tiny_model(seed=3)
    made.model.save_pretrained(tmp_path / "model")
    made.tokenizer.save_pretrained(tmp_path / "model")
    plan = RunPlan(name="unit", goal="test", task="chain4", model=str(tmp_path / "model"))
    settings = preset_by_name("chain4").settings_text()
    made_run = init_run(tmp_path / "run", plan, settings=settings, on_progress=lambda stage, share: None)
    return changed(made_run, parallel=ParallelConfig(plan="auto"))


def changed(folder: RunFolder, **learner: Any) -> RunFolder:
    return replace(folder, settings=replace(folder.settings, learner=replace(folder.settings.learner, **learner)))


def test_the_fastest_plan_is_chosen_once_and_kept(folder: RunFolder, profile: FakeProfile) -> None:
    told: list[str] = []
    found = with_host_plan(folder, told.append).settings.learner
    assert found.parallel.name == "pp2"
    assert found.memory.micro_batch_tokens > 0
    assert found.memory.checkpointing == "off"
    assert profile.asked == [["1", "dp2", "dp2", "pp2", "tp2"]]
    kept = read_choice(folder.directory)
    assert kept is not None
    assert [(each.plan, each.zero) for each in kept.plans] == [("pp2", 2), ("dp2", 2), ("dp2", 3), ("1", 2)]
    assert kept.without_time == ["tp2"]
    assert [line for line in told if "chosen" in line] == [choice_lines(kept)[0]]
    assert "200% slower" in choice_lines(kept)[1]

    again = with_host_plan(folder, told.append).settings.learner
    assert again == found
    assert len(profile.asked) == 1, "a restart times nothing"


@pytest.mark.parametrize("other", ["host", "versions", "settings"])
def test_another_host_version_or_setting_is_profiled_again(
    other: str, folder: RunFolder, profile: FakeProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_host_plan(folder, lambda _: None)
    if other == "settings":
        folder = changed(folder, groups_per_update=3)
    else:
        monkeypatch.setattr(rank_plan_choice, f"_{other}", lambda: "another")
    with_host_plan(folder, lambda _: None)
    assert len(profile.asked) == 2


def test_a_plan_without_memory_is_not_timed(folder: RunFolder, profile: FakeProfile) -> None:
    small = changed(folder, memory=replace(folder.settings.learner.memory, limit_gb=0.01))
    with pytest.raises(MachineError, match="training needs"):
        with_host_plan(small, lambda _: None)
    assert profile.asked == []
    assert read_choice(folder.directory) is None


def test_settings_of_micro_batches_are_kept(folder: RunFolder, profile: FakeProfile) -> None:
    asked = replace(folder.settings.learner.memory, micro_batch_tokens=4000, checkpointing="on")
    found = with_host_plan(changed(folder, memory=asked), lambda _: None).settings.learner.memory
    assert (found.micro_batch_tokens, found.checkpointing) == (4000, "on")


def test_a_named_plan_is_left_alone(folder: RunFolder, profile: FakeProfile) -> None:
    named = changed(folder, parallel=ParallelConfig(plan="dp2"))
    assert with_host_plan(named, lambda _: None) is named
    assert profile.asked == []


def test_an_unreadable_record_is_made_anew(folder: RunFolder, profile: FakeProfile) -> None:
    (folder.directory / "host-plan.json").write_text("{")
    assert with_host_plan(folder, lambda _: None).settings.learner.parallel.name == "pp2"
    assert len(profile.asked) == 1


def test_states_that_ranks_cannot_train_by_leave_one_process(folder: RunFolder, profile: FakeProfile) -> None:
    low = changed(folder, memory=replace(folder.settings.learner.memory, optimizer_states="8bit"))
    assert with_host_plan(low, lambda _: None).settings.learner.parallel.ranks == 1
    assert profile.asked == []


def test_torchrun_needs_a_named_plan(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="one host"):
        with_host_plan(folder, lambda _: None)
