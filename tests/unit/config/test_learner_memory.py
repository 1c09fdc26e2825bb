"""Memory of a learner: told before the model is loaded, refused when it cannot fit, kept by a restart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from p2prl.config.learner_memory import plan_learner_memory
from p2prl.config.new_run import RunFolder, init_run, open_run
from p2prl.config.presets import preset_by_name
from p2prl.config.roles import build_learner
from p2prl.errors import ConfigError, MachineError
from p2prl.learner.new_run_plan import RunPlan
from p2prl.learner.training.memory_config import MemoryConfig
from p2prl.learner.training.micro_batch_log import MicroBatchLog
from p2prl.models.small_models.tiny_models import tiny_model

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = tiny_model(seed=3)
    made.model.save_pretrained(tmp_path / "model")
    made.tokenizer.save_pretrained(tmp_path / "model")
    plan = RunPlan(name="unit", goal="test", task="chain4", model=str(tmp_path / "model"))
    settings = preset_by_name("chain4").settings_text()
    return init_run(tmp_path / "run", plan, settings=settings, on_progress=lambda stage, share: None)


def with_memory(folder: RunFolder, **memory: Any) -> RunFolder:
    learner = replace(folder.settings.learner, memory=MemoryConfig(**memory))
    return replace(folder, settings=replace(folder.settings, learner=learner))


def test_a_plan_is_told_with_what_there_is(folder: RunFolder) -> None:
    told: list[str] = []
    plan = plan_learner_memory(folder, CPU, told.append)
    assert plan.needs is not None
    parameters = folder.manifest.parameters
    assert (plan.needs.weights, plan.needs.optimizer) == (4 * parameters, 8 * parameters)
    assert "free on cpu" in told[0]
    assert plan.rule.tokens > 16 * 8 * 40


def test_a_run_that_cannot_fit_is_refused_before_its_model_is_read(folder: RunFolder) -> None:
    for weights in (folder.directory / "model").glob("*.safetensors"):
        weights.unlink()
    with pytest.raises(MachineError, match=r"training needs 0\.1 GB with one completion at a time"):
        build_learner(with_memory(folder, limit_gb=0.05), on_metrics=lambda _: None, on_notice=lambda _: None)


def test_a_restart_keeps_the_micro_batches_of_the_first_start(folder: RunFolder) -> None:
    def start(**memory: Any) -> int:
        build_learner(with_memory(folder, **memory), on_metrics=lambda _: None, on_notice=lambda _: None).close()
        return MicroBatchLog(folder.paths.micro_batches).at(0).tokens

    first = start(limit_gb=0.25)
    assert start() == first
    assert start(micro_batch_tokens=321) == 321


@pytest.mark.parametrize("precision", ["bf16_stochastic", "bf16_kahan"])
def test_weights_in_training_have_the_type_of_the_precision(folder: RunFolder, precision: str) -> None:
    learner = build_learner(
        with_memory(folder, precision=precision), on_metrics=lambda _: None, on_notice=lambda _: None
    )
    assert next(learner.model.parameters()).dtype == torch.bfloat16
    learner.close()


def test_settings_are_read_from_run_toml(folder: RunFolder) -> None:
    path = folder.directory / "run.toml"
    text = path.read_text().replace(
        "[learner.optimizer]", '[learner.memory]\nprecision = "bf16"\n\n[learner.optimizer]'
    )
    path.write_text(text)
    assert open_run(folder.directory).settings.learner.memory == MemoryConfig(precision="bf16")


def test_attention_without_its_package_is_refused_rather_than_fetched(folder: RunFolder) -> None:
    flash = with_memory(folder, attention="flash_attention_2")
    with pytest.raises(ConfigError, match=r"flash-attn|CUDA alone") as caught:
        build_learner(flash, on_metrics=lambda _: None, on_notice=lambda _: None)
    assert "sdpa" in caught.value.remedy
    with pytest.raises(ConfigError, match="16 bits"):
        MemoryConfig(attention="flash_attention_2", precision="fp32")
