"""Checks of a new run: one that cannot learn is refused before its folder exists, unless it is wanted all the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from p2prl.cli.commands.measure_checkpoint import Measurement, measure_checkpoint
from p2prl.config.learnable_checks import InitChecks, NewRun
from p2prl.config.new_run import init_run, open_run
from p2prl.config.presets import preset_by_name
from p2prl.errors import ConfigError
from p2prl.learner.new_run_plan import RunPlan
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.tasks.data.data_plan import DataPlan
from p2prl.tasks.new_run_verdict import ProbeFacts
from tests.unit.learner.scripted_swarm import _warm_weights

SETTINGS = preset_by_name("chain4").settings_text()
NUMBER = '{"rewards":[{"scorer":"number","weight":1.0}]}'
OTHER = '{"rewards":[{"column":"other","scorer":"number","weight":1.0}]}'


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model that has learned something, and one of random weights, which within one token never earns a reward."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("warm", "random"):
        made = tiny_model(seed=1)
        if name == "warm":
            made.model.load_state_dict(_warm_weights())
        made.model.save_pretrained(folder / name)
        made.tokenizer.save_pretrained(folder / name)
    return {name: folder / name for name in ("warm", "random")}


def make(path: Path, model: Path, checks: InitChecks | None, **changes: Any) -> list[str]:
    told: list[str] = []
    plan = replace(RunPlan(name="unit", goal="test", task="chain4", model=str(model)), **changes)
    init_run(
        path / "run", plan, settings=SETTINGS, on_progress=lambda *_: None, on_notice=told.append, checks=checks,
        fit_settings=True,
    )  # fmt: skip
    return told


def test_a_policy_with_a_signal_passes_and_its_figures_are_told(tmp_path: Path, models: dict[str, Path]) -> None:
    told = make(tmp_path, models["warm"], InitChecks(probe_groups=16))
    assert any(line.startswith("Probe of chain4: reward 0.") and "of 16 groups" in line for line in told)
    assert any("tokens/s" in line for line in told)
    assert any("learning rate 0.00025, training on cpu" in line for line in told)


def test_a_policy_without_reward_is_refused_and_nothing_is_made(tmp_path: Path, models: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="could not learn: in a probe of 16 groups of chain4") as caught:
        make(tmp_path, models["random"], InitChecks(probe_groups=16), max_new_tokens=1)
    assert "--force" in caught.value.remedy
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("checks", [None, InitChecks(probe_groups=0)])
def test_without_a_probe_it_is_made(tmp_path: Path, models: dict[str, Path], checks: InitChecks | None) -> None:
    told = make(tmp_path, models["random"], checks)
    assert not any("Probe" in line for line in told)
    assert (tmp_path / "run" / "run.manifest").exists()


def test_force_makes_it_and_tells_why_it_was_refused(tmp_path: Path, models: dict[str, Path]) -> None:
    told = make(tmp_path, models["random"], InitChecks(probe_groups=16, force=True), max_new_tokens=1)
    assert any("as --force says: this run could not learn" in line for line in told)
    assert (tmp_path / "run" / "run.manifest").exists()


def data(path: Path, scoring: str) -> tuple[DataPlan, ...]:
    rows = [{"question": f"{n}+{n}=", "answer": str(2 * n % 10), "other": n % 2 * 0} for n in range(10)]
    (path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return (DataPlan(task="sums", path=path / "sums.jsonl", scoring=scoring),)


def test_a_scorer_that_tells_answers_apart_passes(tmp_path: Path, models: dict[str, Path]) -> None:
    told = make(
        tmp_path, models["warm"], InitChecks(probe_groups=0), task="", data=data(tmp_path, NUMBER), max_new_tokens=8
    )
    assert not any("scorer" in line for line in told)


def test_one_that_reads_the_wrong_column_is_told(tmp_path: Path, models: dict[str, Path]) -> None:
    told = make(
        tmp_path, models["warm"], InitChecks(probe_groups=0), task="", data=data(tmp_path, OTHER), max_new_tokens=8
    )
    assert any("could not be tried" in line for line in told)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four rows of `data` are the head of a file that takes long."""
    monkeypatch.setattr("p2prl.config.learnable_checks.TRIED_FIRST_BYTES", 100)
    monkeypatch.setattr("p2prl.config.learnable_checks._HEAD_ROWS", 4)


@pytest.mark.usefixtures("large")
def test_large_data_is_tried_before_it_is_packed(tmp_path: Path, models: dict[str, Path]) -> None:
    """A fault in the last row is found in packing, so a refusal by the probe came before. No answer fits one token."""
    plans = data(tmp_path, NUMBER)
    rows = [json.dumps({"question": f"{n}+{n}=", "answer": "120"}) for n in range(10)]
    (tmp_path / "sums.jsonl").write_text("\n".join([*rows, "no row"]))
    wanted = {"task": "", "data": plans, "max_new_tokens": 1}
    with pytest.raises(ConfigError, match="could not learn: in a probe of 16 groups of sums") as caught:
        make(tmp_path, models["random"], InitChecks(probe_groups=16), **wanted)
    assert "first 4 rows" in str(caught.value)
    assert "shuffle it" in caught.value.remedy
    for checks in (InitChecks(probe_groups=0), InitChecks(probe_groups=16, force=True)):
        with pytest.raises(ConfigError, match=r"sums\.jsonl, line 11"):
            make(tmp_path, models["random"], checks, **wanted)
    assert [path.name for path in tmp_path.iterdir()] == ["sums.jsonl"]


@pytest.mark.usefixtures("large")
def test_large_data_is_packed_and_checked_whole_after_its_trial(
    tmp_path: Path, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[int] = []

    def check(new: NewRun, *_: object) -> list[str]:
        checked.append(new.folder.manifest.data_sets[0].rows)
        return [f"{checked[-1]} rows tried"]

    for module in ("learnable_checks", "new_run"):
        monkeypatch.setattr(f"p2prl.config.{module}.check_learnable", check)
    plans = {"task": "", "data": data(tmp_path, NUMBER), "max_new_tokens": 8}
    told = make(tmp_path, models["warm"], InitChecks(probe_groups=2), **plans)
    assert checked == [4, 10]
    assert [each.rows for each in open_run(tmp_path / "run").manifest.data_sets] == [10]
    assert [line for line in told if "rows" in line and "4" in line] == []
    assert "10 rows tried" in told
    assert not (tmp_path / "run" / "trial").exists()


PARTS = (
    '{"rewards":[{"scorer":"number","weight":1.0},{"scorer":"exact","weight":0.1},{"scorer":"exact","weight":-3.0}]}'
)


def test_the_verdict_knows_the_full_reward_of_each_task(
    tmp_path: Path, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, float]] = []

    def judged(_figures: object, facts: ProbeFacts) -> list[str]:
        seen.append(dict(facts.full_rewards))
        return []

    monkeypatch.setattr("p2prl.config.learnable_checks.judge", judged)
    both = {"data": data(tmp_path, PARTS), "max_new_tokens": 8, "reward": "0.5*success"}
    make(tmp_path, models["warm"], InitChecks(probe_groups=2, force=True), task="", **both)
    (tmp_path / "chain").mkdir()
    make(tmp_path / "chain", models["warm"], InitChecks(probe_groups=2), reward="0.5*success+0.2*process")
    assert seen == [{"sums": pytest.approx(0.55)}, {"chain4": 0.5}]


def test_scorers_that_are_not_confined_are_told(
    tmp_path: Path, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("p2prl.config.run_data.confinement_notice", lambda _: "no sandbox here")
    (training,) = data(tmp_path, NUMBER)
    (tmp_path / "held.jsonl").write_text('{"question": "10+9=", "answer": "9"}\n')
    plan = {"task": "", "data": (replace(training, held_out=tmp_path / "held.jsonl"),), "max_new_tokens": 8}
    assert "no sandbox here" in make(tmp_path, models["warm"], InitChecks(probe_groups=0), **plan)
    told: list[str] = []
    wanted = Measurement(prompts=2, samples=0)
    run = open_run(tmp_path / "run")
    measure_checkpoint(run, models["warm"], wanted, on_progress=lambda *_: None, on_notice=told.append)
    assert told == ["no sandbox here"]
