"""A run of adapters: its folder, its model as a volunteer builds it, its checkpoints, its export and a local base."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from blake3 import blake3
from peft import PeftModel
from transformers import AutoModelForCausalLM

from p2prl.algorithms.loss_registry import build_loss
from p2prl.cli.commands.measure_checkpoint import Measurement, measure_checkpoint
from p2prl.config.learner_memory import plan_learner_memory
from p2prl.config.new_run import RunFolder, init_run, open_run, run_file_blobs
from p2prl.config.presets import preset_by_name
from p2prl.errors import ConfigError, IntegrityError, MachineError
from p2prl.learner.new_run_plan import RunPlan
from p2prl.learner.training.local_update_engine import LocalEngine, make_trainer
from p2prl.learner.training.loss_pipeline import LossPipeline
from p2prl.learner.training.optimizer_config import OptimizerConfig
from p2prl.learner.training.optimizer_step import Trainer
from p2prl.learner.training.reference_policy import ReferenceConfig
from p2prl.learner.training.training_group import TrainingGroup, training_group
from p2prl.models.base_model.local_base import flatten_local_base, load_policy
from p2prl.models.base_model.pretrained import LoadedModel
from p2prl.models.engines.vllm.sampler import build_sampler
from p2prl.models.export.model_directory import open_export, write_model
from p2prl.models.run_model import RunModel, read_run_model
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.weights.layout import copy_weights, flatten, is_adapter, layout_of
from p2prl.protocol.manifests import RunManifest

CPU = torch.device("cpu")
TOKENS = torch.tensor([[14, 1, 10, 2, 13]])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of adapters of rank 4 on a model of random weights, published in bfloat16."""
    folder = tmp_path_factory.mktemp("lora")
    made = tiny_model(seed=4)
    made.model.save_pretrained(folder / "base")
    made.tokenizer.save_pretrained(folder / "base")
    plan = RunPlan(name="unit", goal="test", task="chain4", model=str(folder / "base"), dtype="bfloat16", lora_rank=4)
    told: list[str] = []
    settings = preset_by_name("chain4").settings_text()
    init_run(folder / "run", plan, settings=settings, on_progress=lambda *_: None, on_notice=told.append,
             fit_settings=True)  # fmt: skip
    assert "Adapters of rank 4: 6,144 of 65,184 parameters are trained." in told
    return open_run(folder / "run")


def model_of(run: RunFolder) -> RunModel:
    """The model as a volunteer reads it."""
    manifest = run.manifest
    files = {file.name: data for file, data in run_file_blobs(run)}
    return read_run_model(
        files,
        layout_digest=manifest.layout,
        weight_bytes=manifest.weight_bytes,
        dtype=manifest.engine_dtype,
        lora=manifest.lora,
    )


def first(run: RunFolder) -> Path:
    return run.directory / "model"


def loaded(run: RunFolder, directory: Path) -> LoadedModel:
    return load_policy(directory, first(run), run.manifest.lora, device=CPU, dtype="float32")


def trainer(model: Any) -> Trainer:
    loss = LossPipeline.plain(build_loss("gepo_t", options={}))
    config = OptimizerConfig(learning_rate=1e-2, warmup_updates=1)
    return make_trainer(model, loss, config, temperature=1.0, reference=ReferenceConfig(ema_rate=0.5))


def batch(number: int) -> list[TrainingGroup]:
    completions = ((number, 2, 3), (4, number), (5,))
    behavior = tuple(tuple(-2.5 for _ in ids) for ids in completions)
    return [training_group((14, number, 7), completions, behavior, (0.0, 1.0, 0.5), 1)]


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    made: torch.Tensor = model(input_ids=TOKENS, use_cache=False).logits
    return made


def test_a_volunteer_builds_the_layout_and_computes_the_policy(run: RunFolder) -> None:
    model, training = model_of(run), loaded(run, first(run)).model
    assert model.layout == layout_of(training, "bfloat16")
    assert run.manifest.parameters == model.layout.parameters
    with torch.no_grad():
        for name, parameter in training.named_parameters():
            if is_adapter(name):
                parameter.add_(0.1)
    built = model.build(device=CPU, dtype="float32")
    copy_weights(built, model.layout, flatten(training, model.layout))
    torch.testing.assert_close(logits(built), logits(training), rtol=0.05, atol=0.05)
    assert not torch.allclose(logits(built), logits(loaded(run, first(run)).model), atol=0.5)


def test_another_rank_is_not_the_run(run: RunFolder) -> None:
    with pytest.raises(IntegrityError, match="does not match the layout"):
        model_of(replace(run, manifest=of_rank(run, 5)))


def of_rank(run: RunFolder, rank: int) -> RunManifest:
    """The run's manifest with adapters of another rank."""
    lora = run.manifest.lora
    assert lora is not None
    return msgspec.structs.replace(run.manifest, lora=msgspec.structs.replace(lora, rank=rank))


def test_an_update_moves_adapters_alone_and_a_checkpoint_resumes_it(run: RunFolder, tmp_path: Path) -> None:
    made = loaded(run, first(run))
    straight = trainer(made.model)
    layout = layout_of(made.model, "float32")
    before = bytes(flatten(made.model, layout))
    for number in (1, 2):
        straight.update(batch(number))
    after = bytes(flatten(made.model, layout))
    frozen = 4 * (layout.parameters - layout.trained_parameters)
    assert before[:frozen] == after[:frozen]
    assert before[frozen:] != after[frozen:]
    checkpoint = tmp_path / "step-00000002"
    straight.save(checkpoint, made.tokenizer)
    assert not list(checkpoint.glob("model*.safetensors")), "the frozen weights are in the run folder"
    again = loaded(run, checkpoint)
    resumed = trainer(again.model)
    resumed.restore(checkpoint)
    straight.update(batch(3))
    resumed.update(batch(3))
    assert bytes(flatten(again.model, layout)) == bytes(flatten(made.model, layout))


def test_the_reference_follows_the_adapters_and_shares_the_frozen_weights(run: RunFolder) -> None:
    made = loaded(run, first(run))
    straight = trainer(made.model)
    straight.update(batch(1))
    assert isinstance(straight.engine, LocalEngine)
    reference = straight.engine._reference
    assert reference is not None
    held = dict(reference._model.named_parameters())
    for name, parameter in made.model.named_parameters():
        assert (held[name] is parameter) != is_adapter(name)
    up = next(name for name in held if ".lora_B." in name)
    torch.testing.assert_close(held[up], 0.5 * dict(made.model.named_parameters())[up].detach(), rtol=1e-5, atol=1e-8)
    assert len(reference.tensors()) == sum(map(is_adapter, held))


def test_an_export_is_the_merged_model_and_the_adapters_of_peft(run: RunFolder, tmp_path: Path) -> None:
    made = loaded(run, first(run))
    straight = trainer(made.model)
    for number in range(4):
        straight.update(batch(number))
    straight.save(tmp_path / "step-4", made.tokenizer)
    opened = open_export(
        tmp_path / "step-4",
        first=first(run),
        run_files={file.name: data for file, data in run_file_blobs(run)},
        manifest=run.manifest,
        policy=None,
        blobs=tmp_path,
        dtype="float32",
    )
    (tmp_path / "out").mkdir()
    written = write_model(opened, tmp_path / "out", shard_bytes=1 << 30, on_progress=lambda _: None)
    assert written.version is None
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(logits(merged), logits(made.model), rtol=1e-4, atol=1e-4)
    base = AutoModelForCausalLM.from_pretrained(first(run))
    assert not torch.allclose(logits(base), logits(merged), atol=1e-2)
    adapted = PeftModel.from_pretrained(base, tmp_path / "out" / "adapter").eval()
    torch.testing.assert_close(logits(adapted), logits(made.model), rtol=1e-4, atol=1e-4)


def test_a_volunteer_with_the_base_model_makes_the_first_weights_itself(run: RunFolder, tmp_path: Path) -> None:
    made = loaded(run, first(run)).model
    published = bytes(flatten(made, layout_of(made, "bfloat16")))
    base = run.directory.parent / "base"
    assert flatten_local_base(base, run.manifest, tmp_path) == blake3(published).digest()
    with pytest.raises(ConfigError, match="parameters"):
        flatten_local_base(base, of_rank(run, 5), tmp_path)


def test_memory_is_planned_for_what_is_trained(run: RunFolder) -> None:
    needs = plan_learner_memory(run, CPU, lambda _: None).needs
    assert needs is not None
    trained = layout_of(loaded(run, first(run)).model, "bfloat16").trained_parameters
    assert (needs.gradients, needs.optimizer) == (4 * trained, 8 * trained)
    assert needs.weights == 4 * run.manifest.parameters


def test_the_first_weights_can_be_measured(run: RunFolder) -> None:
    wanted = Measurement(prompts=4, samples=1, splits=("fresh",), seed=0, device="cpu")
    reports = measure_checkpoint(run, first(run), wanted, on_progress=lambda *_: None, on_notice=lambda _: None)
    assert reports["chain4"]["prompts"] == 4


def test_vllm_leaves_runs_of_adapters_to_transformers(run: RunFolder) -> None:
    with pytest.raises(MachineError, match="adapters"):
        build_sampler(model_of(run), device=CPU, dtype="float32")


def test_the_learning_rate_is_fitted_to_adapters(run: RunFolder) -> None:
    assert run.settings.learner.optimizer.learning_rate == pytest.approx(2.5e-3)
