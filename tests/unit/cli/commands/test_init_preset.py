"""Options of `p2prl init` with a preset: what is added, and what is left to the user."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from p2prl.cli.commands.init import prepare_preset
from p2prl.cli.commands.init_options import InitOptions
from p2prl.cli.commands.init_plan import run_plan
from p2prl.config.presets import preset_by_name
from p2prl.errors import ConfigError


@pytest.fixture
def options(tmp_path: Path) -> InitOptions:
    return InitOptions(
        name="mine",
        preset="arithmetic",
        model=None,
        lora_rank=0,
        tasks=[],
        data=[],
        held_out=[],
        eval_split=0.0,
        scorers=[],
        length_penalty="",
        prompt_columns=[],
        answer_columns=[],
        drop_long=False,
        drop_conflicts=False,
        chat_template="",
        system="",
        goal=None,
        staleness=None,
        publish_every=None,
        group_size=8,
        temperature=1.0,
        max_new_tokens=None,
        reward="success",
        dtype=None,
        compute_dtype=None,
        license_name=None,
        probe=None,
        force=False,
        root=tmp_path / "runs",
        seed=0,
        as_json=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "made"
    made.mkdir()
    return made


def test_arithmetic_alone_is_a_complete_plan(options: InitOptions, folder: Path) -> None:
    prepared = prepare_preset(options, folder)
    plan, settings = run_plan(prepared.options)
    preset = preset_by_name("arithmetic")
    assert [data.task for data in plan.data] == ["arithmetic"]
    assert plan.data[0].held_out is not None
    assert plan.model == str(folder / "model")
    assert (plan.goal, plan.max_new_tokens, plan.staleness_bound) == (preset.goal, preset.max_new_tokens, 16)
    assert settings == preset.settings_text()
    assert not prepared.is_own_model
    assert not (folder / "model").exists(), "the model is made when all options are known to be legal"


def test_countdown_is_a_task_with_the_small_model(options: InitOptions, folder: Path) -> None:
    plan, _ = run_plan(prepare_preset(replace(options, preset="countdown"), folder).options)
    assert (plan.task, plan.data, plan.max_new_tokens) == ("countdown", (), 64)
    assert plan.model is not None


def test_the_users_data_and_model_replace_the_presets(options: InitOptions, folder: Path) -> None:
    own = replace(options, data=["own.jsonl"], scorers=["exact"], model="somewhere", max_new_tokens=9)
    prepared = prepare_preset(own, folder)
    assert prepared.options == own
    assert prepared.is_own_model
    assert list(folder.iterdir()) == []


def test_the_users_data_go_with_the_presets_model(options: InitOptions, folder: Path) -> None:
    prepared = prepare_preset(replace(options, data=["own.jsonl"], scorers=["exact"]), folder)
    assert (prepared.options.data, prepared.options.scorers) == (["own.jsonl"], ["exact"])
    assert prepared.options.model == str(folder / "model")


def test_the_users_model_goes_with_the_presets_data(options: InitOptions, folder: Path) -> None:
    prepared = prepare_preset(replace(options, model="somewhere"), folder)
    assert prepared.options.model == "somewhere"
    assert prepared.options.data
    assert prepared.options.goal is None, "the preset's goal names its own model"
    assert prepared.is_own_model


def test_chain4_is_left_alone(options: InitOptions, folder: Path) -> None:
    plain = replace(options, preset="chain4")
    assert prepare_preset(plain, folder).options == plain


def test_a_named_task_replaces_the_presets(options: InitOptions, folder: Path) -> None:
    named = replace(options, tasks=["walk12"])
    assert prepare_preset(named, folder).options == named


def test_a_folder_in_use_is_refused_before_anything_is_made(options: InitOptions, folder: Path) -> None:
    run = options.root / options.name
    run.mkdir(parents=True)
    (run / "file").write_text("x")
    with pytest.raises(ConfigError, match="not empty"):
        prepare_preset(options, folder)
    assert list(folder.iterdir()) == []
