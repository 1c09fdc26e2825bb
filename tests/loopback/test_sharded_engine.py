"""Training over two ranks: the gradient, the weights and the checkpoints of one process, for every loss and model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

from p2prl.algorithms.loss_registry import LOSSES, build_loss
from p2prl.errors import ConfigError
from p2prl.learner.training.loss_pipeline import LossPipeline, LossPipelineConfig
from p2prl.learner.training.optimizer_step import Trainer
from p2prl.learner.training.reference_policy import ReferenceConfig
from p2prl.learner.training.value_head import ValueHeadConfig
from p2prl.learner.training.weight_optimizer import OptimizerConfig
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.weights.layout import layout_of
from p2prl.models.weights.lora import add_lora, draw_first_adapters, plan_lora
from p2prl.ranks import commands
from p2prl.ranks.processes import RankProcesses, meeting_folder
from p2prl.ranks.sharded_engine import check_precision
from tests.loopback.rank_rig import CONFIG, batch_of, saved, sharded, single, trainer_of
from tests.unit.models.small_decoders import gpt2, qwen2

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(600)]

PLAIN_STEP = OptimizerConfig(learning_rate=1e-3, warmup_updates=0, gradient_clip=1e6, global_amsgrad=False)


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankProcesses]:
    """This process and one more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    met = RankProcesses(commands.Plan(ranks=2, folder=str(meeting_folder()), threads=1))
    yield met
    met.close()
    torch.set_num_threads(before)


def pipeline(loss: str = "gepo_t", **parts: Any) -> LossPipeline:
    return LossPipeline(LossPipelineConfig(objective=build_loss(loss, max_completion_tokens=12), **parts))


def weights(of: Trainer, like: Any) -> NDArray[np.float32]:
    return np.frombuffer(bytes(of.engine.copy_weights(layout_of(like, "float32"))), dtype="<f4")


def assert_close(found: NDArray[np.float32], wanted: NDArray[np.float32], *, updates: int) -> None:
    """Equal up to the order of sums, which Adam magnifies where a gradient is rounding noise."""
    off = np.abs(found - wanted)
    assert np.mean(off > 1e-5) <= 1e-4
    assert off.max() <= 0.1 * CONFIG.learning_rate * updates
    assert np.abs(wanted).max() > 0.01


@pytest.mark.parametrize("loss", LOSSES.names())
def test_the_gradient_of_every_loss_is_that_of_one_process(loss: str, ranks: RankProcesses, tmp_path: Path) -> None:
    """Adam's first step hides a gradient's size, so it is compared itself: by the state that the step leaves."""
    model = qwen2()
    directory = saved(model, tmp_path / "model")
    states = []
    for trainer in (
        single(directory, pipeline(loss), config=PLAIN_STEP),
        sharded(ranks, directory, pipeline(loss), config=PLAIN_STEP),
    ):
        metrics = trainer.update(batch_of(3, model))
        trainer.save(tmp_path / "step-1", tiny_model().tokenizer)
        states.append((metrics, first_means(tmp_path / "step-1")))
    (one, wanted), (two, found) = states
    assert np.abs(found - wanted).max() <= 5e-6 * np.abs(wanted).max()
    assert np.abs(wanted).max() > 0.0
    assert two["loss"] == pytest.approx(one["loss"], rel=1e-4, abs=1e-6)
    assert two["gradient_norm"] == pytest.approx(one["gradient_norm"], rel=1e-5)


def first_means(checkpoint: Path) -> NDArray[np.float32]:
    """Adam's running mean of every weight: a tenth of the gradient, after one update without clipping."""
    state = load_file(checkpoint / "optimizer.safetensors")
    names = sorted((name for name in state if name.endswith(".exp_avg")), key=lambda name: int(name.partition(".")[0]))
    return np.concatenate([state[name].reshape(-1) for name in names])


CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "tied": (qwen2, {}),
    "tied zero 3": (qwen2, {"zero": 3}),
    "untied": (lambda: qwen2(tied=False), {}),
    "gpt2 remat": (gpt2, {"remat": True}),
    "one micro-batch": (qwen2, {"tokens": 10_000}),
    "a row at a time, zero 3, remat": (qwen2, {"tokens": 1, "zero": 3, "remat": True}),
    "reference": (qwen2, {"reference": ReferenceConfig(ema_rate=0.3)}),
}


@pytest.mark.parametrize("case", CASES)
def test_twenty_updates_reach_the_weights_of_one_process(case: str, ranks: RankProcesses, tmp_path: Path) -> None:
    make, options = CASES[case]
    model = make()
    directory = saved(model, tmp_path / "model")
    zero = options.get("zero", 2)
    alone = {name: value for name, value in options.items() if name != "zero"}
    one, two = single(directory, pipeline(), **alone), sharded(ranks, directory, pipeline(), zero=zero, **alone)
    for seed in range(20):
        batch = batch_of(seed, model)
        one.update(batch)
        two.update(batch)
    assert_close(weights(two, model), weights(one, model), updates=20)


def test_batches_with_few_rows_alive(ranks: RankProcesses, tmp_path: Path) -> None:
    model = qwen2()
    directory = saved(model, tmp_path / "model")
    one, two = single(directory, pipeline("reinforce")), sharded(ranks, directory, pipeline("reinforce"))
    for rewards in ([[1.0] * 4] * 3, [[1.0] * 4, [0.0, 0.0, 0.0, 1.0], [0.0] * 4], [[0.0, 1.0, 0.0, 1.0]] * 3):
        batch = batch_of(5, model, rewards=rewards)
        first, second = one.update(batch), two.update(batch)
        assert second["gradient_norm"] == pytest.approx(first["gradient_norm"], rel=1e-5, abs=1e-9)
    assert_close(weights(two, model), weights(one, model), updates=3)


def test_a_value_head_learns_as_in_one_process(ranks: RankProcesses, tmp_path: Path) -> None:
    model = qwen2()
    directory = saved(model, tmp_path / "model")
    one = single(directory, pipeline("ppo", value=ValueHeadConfig()))
    two = sharded(ranks, directory, pipeline("ppo", value=ValueHeadConfig()))
    for seed in range(8):
        batch = batch_of(seed, model)
        first, second = one.update(batch), two.update(batch)
        assert second["value/loss"] == pytest.approx(first["value/loss"], rel=1e-4)
    assert_close(weights(two, model), weights(one, model), updates=8)


def test_adapters_train_with_a_reference(ranks: RankProcesses, tmp_path: Path) -> None:
    model = qwen2()
    first = saved(model, tmp_path / "model")
    lora = plan_lora(model, rank=2)
    add_lora(model, lora)
    draw_first_adapters(model)
    start = single_checkpoint(model, tmp_path / "step-0")
    options: dict[str, Any] = {"first": first, "lora": lora, "reference": ReferenceConfig(ema_rate=0.3)}
    one, two = single(start, pipeline(), **options), sharded(ranks, start, pipeline(), **options)
    for seed in range(5):
        one.update(batch_of(seed, model))
        two.update(batch_of(seed, model))
    assert_close(weights(two, model), weights(one, model), updates=5)
    for number, trainer in enumerate((one, two)):
        trainer.save(tmp_path / f"step-{number + 1}", tiny_model().tokenizer)
    assert names_in(tmp_path / "step-1") == names_in(tmp_path / "step-2")


def single_checkpoint(model: Any, directory: Path) -> Path:
    """A checkpoint of these weights before any update."""
    trainer_of(model, pipeline()).save(directory, tiny_model().tokenizer)
    return directory


def names_in(checkpoint: Path) -> dict[str, dict[str, tuple[int, ...]]]:
    """Tensors of a checkpoint's files, with their shapes."""
    return {
        str(path.relative_to(checkpoint)): {name: tensor.shape for name, tensor in load_file(path).items()}
        for path in sorted(checkpoint.rglob("*.safetensors"))
    }


@pytest.mark.parametrize("tied", [True, False])
def test_a_checkpoint_goes_on_under_any_number_of_ranks(tied: bool, ranks: RankProcesses, tmp_path: Path) -> None:
    model = qwen2(tied=tied)
    directory = saved(model, tmp_path / "model")
    parts: dict[str, Any] = {"value": ValueHeadConfig()}
    options: dict[str, Any] = {"reference": ReferenceConfig(ema_rate=0.3)}
    one = single(directory, pipeline("ppo", **parts), **options)
    two = sharded(ranks, directory, pipeline("ppo", **parts), **options)
    for seed in range(3):
        one.update(batch_of(seed, model))
        two.update(batch_of(seed, model))
    one.save(tmp_path / "step-1", tiny_model().tokenizer)
    two.save(tmp_path / "step-2", tiny_model().tokenizer)
    assert names_in(tmp_path / "step-1") == names_in(tmp_path / "step-2")
    one.update(batch_of(9, model))
    wanted = weights(one, model)
    for checkpoint in (tmp_path / "step-1", tmp_path / "step-2"):
        alone = single(checkpoint, pipeline("ppo", **parts), **options)
        together = sharded(ranks, checkpoint, pipeline("ppo", **parts), **options)
        for resumed in (alone, together):
            resumed.restore(checkpoint)
            assert resumed.step == 3
            resumed.update(batch_of(9, model))
            assert_close(weights(resumed, model), wanted, updates=4)


def test_two_runs_have_the_same_bytes(ranks: RankProcesses, tmp_path: Path) -> None:
    model = qwen2()
    directory = saved(model, tmp_path / "model")
    found = []
    for zero in (2, 2, 3):
        trainer = sharded(ranks, directory, pipeline(), zero=zero)
        for seed in range(5):
            trainer.update(batch_of(seed, model))
        found.append(weights(trainer, model).tobytes())
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_published_has_the_layout_of_one_process(dtype: str, ranks: RankProcesses, tmp_path: Path) -> None:
    model = qwen2()
    directory = saved(model, tmp_path / "model")
    layout = layout_of(model, dtype)
    wanted = single(directory, pipeline()).engine.copy_weights(layout)
    assert sharded(ranks, directory, pipeline()).engine.copy_weights(layout) == wanted


def test_optimizers_that_ranks_cannot_share_are_refused() -> None:
    for precision, states in (("bf16_stochastic", "full"), ("bf16_kahan", "full"), ("fp32", "8bit")):
        with pytest.raises(ConfigError, match="one process only"):
            check_precision(precision, states)  # type: ignore[arg-type]
    check_precision("bf16", "full")
