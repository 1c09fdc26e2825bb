"""Trainer: checkpoints and replays are exact to the bit."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from p2prl.algorithms.advantages import AdvantageConfig
from p2prl.algorithms.batch import LossOutput, RolloutBatch
from p2prl.algorithms.loss_registry import build_loss
from p2prl.errors import ConfigError, MachineError
from p2prl.learner.training.checkpoints import complete_checkpoints, newest_checkpoint
from p2prl.learner.training.local_update_engine import make_trainer
from p2prl.learner.training.loss_pipeline import LossPipeline
from p2prl.learner.training.optimizer_config import OptimizerConfig
from p2prl.learner.training.optimizer_step import Trainer
from p2prl.learner.training.training_group import TrainingGroup, training_group
from p2prl.models.base_model.pretrained import load_pretrained
from p2prl.models.logprobs.policy_logprobs import completion_logprobs
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.weights.layout import flatten, layout_of

CONFIG = OptimizerConfig(learning_rate=1e-3, warmup_updates=3)
CPU = torch.device("cpu")


def batches(count: int) -> Iterator[list[TrainingGroup]]:
    """Batches of two groups of three completions, with the log-probs of the starting model."""
    model = tiny_model(seed=2).model
    generator = torch.Generator().manual_seed(7)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    for _ in range(count):
        groups = []
        for _ in range(2):
            prompt = (14, *(draw(0, 10) for _ in range(4)))
            completions = tuple(tuple(draw(0, 10) for _ in range(draw(1, 6))) for _ in range(3))
            with torch.no_grad():
                logprobs, _ = completion_logprobs(model, [prompt] * 3, completions, 1.0)
            behavior = tuple(tuple(row[: len(ids)].tolist()) for row, ids in zip(logprobs, completions, strict=True))
            groups.append(training_group(prompt, completions, behavior, (0.0, 1.0, float(draw(0, 2))), draw(0, 3)))
        yield groups


def trainer(model: Any) -> Trainer:
    return make_trainer(model, LossPipeline.plain(build_loss("gepo_t", options={})), CONFIG, temperature=1.0)


def state(of: Trainer) -> bytes:
    return bytes(flatten(of.model, layout_of(of.model, "float32")))


def test_restored_checkpoint_takes_the_same_next_steps(tmp_path: Path) -> None:
    made = tiny_model(seed=2)
    straight = trainer(made.model)
    work = list(batches(6))
    for batch in work[:3]:
        straight.update(batch)
    straight.save(tmp_path / "step-00000003", made.tokenizer)
    resumed = trainer(load_pretrained(str(tmp_path / "step-00000003"), device=CPU, dtype="float32").model)
    assert state(resumed) == state(straight)
    resumed.restore(tmp_path / "step-00000003")
    assert resumed.step == 3
    for batch in work[3:]:
        assert straight.update(batch) == resumed.update(batch)
        assert state(straight) == state(resumed)


def test_replayed_batches_give_identical_parameters() -> None:
    first, second = (trainer(tiny_model(seed=2).model) for _ in range(2))
    for batch in batches(4):
        first.update(batch)
    for batch in batches(4):
        second.update(batch)
    assert state(first) == state(second)
    assert state(first) != state(trainer(tiny_model(seed=2).model))


def test_metrics_describe_the_batch() -> None:
    (batch,) = batches(1)
    metrics = trainer(tiny_model(seed=2).model).update(batch)
    rewards = [reward for group in batch for reward in group.rewards]
    lengths = [len(ids) for group in batch for ids in group.completions]
    ages = sorted(group.staleness for group in batch)
    logprobs = [float(logprob) for group in batch for row in group.behavior_logprobs for logprob in row]
    assert metrics["reward"] == pytest.approx(math.fsum(rewards) / 6)
    assert metrics["reward_std"] == pytest.approx(statistics.pstdev(map(float, rewards)))
    assert metrics["reward_std"] > 0.0
    assert metrics["entropy_per_token"] == pytest.approx(-statistics.fmean(logprobs), rel=1e-5)
    assert metrics["completion_tokens_mean"] == pytest.approx(sum(lengths) / 6)
    assert (metrics["staleness_p50"], metrics["staleness_max"]) == (ages[1], ages[-1])
    assert metrics["kl_behavior_per_token"] == pytest.approx(0.0, abs=1e-6)  # the first update is on-policy
    assert metrics["learning_rate"] == pytest.approx(1e-3 / 3)
    assert metrics["step"] == 1


def test_small_gradients_take_small_steps_unless_the_run_says_otherwise() -> None:
    """Each batch is trained on with all its rewards a thousandth as far apart after the first: advantages of `mean`."""
    work = list(batches(6))
    work[1:] = [
        [replace(group, rewards=np.divide(group.rewards, np.float32(1000))) for group in batch] for batch in work[1:]
    ]
    loss = build_loss("gepo_t", options={}, advantage=AdvantageConfig(kind="mean"))
    seen = {}
    for follows in (True, False):
        config = replace(CONFIG, global_amsgrad=follows)
        subject = make_trainer(tiny_model(seed=2).model, LossPipeline.plain(loss), config, temperature=1.0)
        seen[follows] = [subject.update(batch) for batch in work]
    for metrics in seen[False]:
        assert metrics["amsgrad_factor"] == 1.0
    beta2 = CONFIG.beta2
    square, unbiased, highest = 0.0, 0.0, 0.0
    for step, metrics in enumerate(seen[True]):
        square = beta2 * square + (1 - beta2) * min(metrics["gradient_norm"], CONFIG.gradient_clip) ** 2
        highest, unbiased = max(highest, square), square / (1 - beta2 ** (step + 1))
        assert metrics["amsgrad_factor"] == pytest.approx(math.sqrt(min(1.0, unbiased / highest)))
        assert metrics["learning_rate"] == pytest.approx(1e-3 * min(1.0, (step + 1) / 3) * metrics["amsgrad_factor"])


def test_gradient_that_is_not_finite_is_not_applied() -> None:
    (batch,) = batches(1)
    model = tiny_model(seed=2).model
    honest = build_loss("gepo_t", options={})

    def explode(policy_logprobs: torch.Tensor, batch: RolloutBatch, *_: object) -> LossOutput:
        return replace(honest.loss(policy_logprobs, batch), loss=policy_logprobs.sum() * math.inf)

    exploding = replace(honest, spec=replace(honest.spec, function=explode))
    subject = make_trainer(model, LossPipeline.plain(exploding), CONFIG, temperature=1.0)
    before = state(subject)
    with pytest.raises(MachineError, match="the gradient at update 0 is not finite") as caught:
        subject.update(batch)
    assert "learning_rate" in caught.value.remedy
    assert (state(subject), subject.step) == (before, 0)


def test_diverged_policy_is_reported() -> None:
    (batch,) = batches(1)
    model = tiny_model(seed=2).model
    with torch.no_grad():
        model.transformer.h[0].mlp.c_fc.weight[0, 0] = math.inf  # as after a learning rate that is too high
    with pytest.raises(MachineError, match="the policy at update 0 is not finite"):
        trainer(model).update(batch)


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), SafetensorError("I/O error: no space")])
def test_failed_checkpoint_leaves_the_old_one_and_no_partial_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    made = tiny_model(seed=2)
    subject = trainer(made.model)
    subject.save(tmp_path / "step-00000000", made.tokenizer)

    def full(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr("p2prl.learner.training.trainer_checkpoint.save_file", full)
    subject.step = 5
    with pytest.raises(MachineError, match="cannot write the checkpoint") as caught:
        subject.save(tmp_path / "step-00000005", made.tokenizer)
    assert "Free some space" in caught.value.remedy
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000000"]


def test_unfinished_checkpoint_is_ignored(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path / "absent") is None
    for name in ("step-00000010", "step-00000020", "step-00000030.new"):
        (tmp_path / name).mkdir()
    assert [path.name for path in complete_checkpoints(tmp_path)] == ["step-00000010", "step-00000020"]
    assert newest_checkpoint(tmp_path) == tmp_path / "step-00000020"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", 0.0),
        ("learning_rate", math.nan),
        ("beta1", 1.0),
        ("beta2", -0.1),
        ("weight_decay", -1.0),
        ("warmup_updates", -1),
        ("gradient_clip", 0.0),
    ],
)
def test_impossible_settings_are_named(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        replace(CONFIG, **{name: value})  # type: ignore[arg-type]
