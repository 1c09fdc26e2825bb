"""Training over ranks: the gradient, the weights and the checkpoints of one process, for every plan, loss and model.

All plans of two ranks share one pair of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from p2prl.algorithms.loss_registry import LOSSES
from p2prl.errors import ConfigError
from p2prl.learner.training.optimizer_step import Trainer
from p2prl.learner.training.parallel_config import ParallelConfig
from p2prl.learner.training.reference_policy import ReferenceConfig
from p2prl.learner.training.value_head import ValueHeadConfig
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.weights.layout import layout_of
from p2prl.models.weights.lora import add_lora, draw_first_adapters, plan_lora
from p2prl.ranks.processes import RankProcesses
from p2prl.ranks.sharded_engine import check_states
from tests.loopback.rank_rig import (
    assert_close,
    assert_gradients_agree,
    batch_of,
    names_in,
    pipeline,
    saved,
    sharded,
    single,
    started,
    trainer_of,
    weights,
)
from tests.unit.models.small_decoders import gemma, gpt2, llama, qwen2, qwen3

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(600)]

DATA = ParallelConfig(plan="dp2")
GATHERED_TWICE = ParallelConfig(plan="dp2", zero=3)
STAGES = ParallelConfig(plan="pp2")
LAYERS = ParallelConfig(plan="tp2")
PLANS = [DATA, GATHERED_TWICE, STAGES, LAYERS]
EACH_PLAN = pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan.plan} zero {plan.zero}")


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankProcesses]:
    """This process and one more."""
    with started(2) as met:
        yield met


@EACH_PLAN
def test_the_gradient_of_every_loss_is_that_of_one_process(
    plan: ParallelConfig, ranks: RankProcesses, tmp_path: Path
) -> None:
    """Rank 0 computes a loss before it is shared by any plan: one plan sees all losses, the others a third each."""
    model = qwen2()
    directory = saved(model, tmp_path / "model")
    one, two = single(directory, pipeline()), sharded(ranks, directory, pipeline(), parallel=plan)
    number = PLANS.index(plan)
    assert_gradients_agree(one, two, model, losses=LOSSES.names()[number - 1 :: 3] if number else LOSSES.names())


CASES: dict[str, tuple[ParallelConfig, Callable[[], Any], dict[str, Any]]] = {
    "dp2 tied": (DATA, qwen2, {"updates": 20}),
    "dp2 gpt2 remat": (DATA, gpt2, {"remat": True}),
    "dp2 llama, one micro-batch": (DATA, llama, {"tokens": 10_000}),
    "dp2 untied, a row at a time, zero 3, remat": (
        GATHERED_TWICE,
        lambda: qwen2(tied=False),
        {"tokens": 1, "remat": True},
    ),
    "dp2 reference": (DATA, qwen2, {"reference": ReferenceConfig(ema_rate=0.3)}),
    "pp2 tied": (STAGES, qwen2, {"updates": 20}),
    "pp2 llama, one micro-batch": (STAGES, llama, {"tokens": 10_000}),
    "pp2 untied, a row at a time, remat": (STAGES, lambda: qwen2(tied=False), {"tokens": 1, "remat": True}),
    "tp2 tied": (LAYERS, qwen2, {"updates": 20}),
    "tp2 untied, norms of heads, a row at a time, remat": (LAYERS, qwen3, {"tokens": 1, "remat": True}),
    "pp2 gpt2": (STAGES, gpt2, {}),
    "pp2 reference": (STAGES, qwen2, {"reference": ReferenceConfig(ema_rate=0.3)}),
}


@pytest.mark.parametrize("case", CASES)
def test_updates_reach_the_weights_of_one_process(case: str, ranks: RankProcesses, tmp_path: Path) -> None:
    plan, make, options = CASES[case]
    model = make()
    directory = saved(model, tmp_path / "model")
    updates = options.get("updates", 4)
    alike = {name: value for name, value in options.items() if name != "updates"}
    one, two = single(directory, pipeline(), **alike), sharded(ranks, directory, pipeline(), parallel=plan, **alike)
    for seed in range(updates):
        batch = batch_of(seed, model)
        first, second = one.update(batch), two.update(batch)
        assert second["gradient_norm"] == pytest.approx(first["gradient_norm"], rel=1e-3)
    assert_close(weights(two, model), weights(one, model), updates=updates)


@pytest.mark.parametrize("plan", [DATA, STAGES, LAYERS], ids=lambda plan: plan.plan)
@pytest.mark.parametrize("precision", ["bf16", "bf16_stochastic", "bf16_kahan"])
def test_sixteen_bits_train_as_in_one_process(
    precision: str, plan: ParallelConfig, ranks: RankProcesses, tmp_path: Path
) -> None:
    """Products in bfloat16 differ in their last bits by the order of sums, which moves a weight by some ulps."""
    model = qwen2()
    directory = saved(model, tmp_path / "model")
    start = weights(single(directory, pipeline(), precision=precision), model)
    one = single(directory, pipeline(), precision=precision)
    two = sharded(ranks, directory, pipeline(), parallel=plan, precision=precision)
    for seed in range(4):
        one.update(batch_of(seed, model))
        two.update(batch_of(seed, model))
    moved, off = np.abs(weights(one, model) - start), np.abs(weights(two, model) - weights(one, model))
    assert off.mean() < 0.1 * moved.mean()
    assert moved.mean() > 0.0


@EACH_PLAN
def test_batches_with_few_rows_alive(plan: ParallelConfig, ranks: RankProcesses, tmp_path: Path) -> None:
    model = qwen2()
    directory = saved(model, tmp_path / "model")
    one = single(directory, pipeline("reinforce"))
    two = sharded(ranks, directory, pipeline("reinforce"), parallel=plan)
    for rewards in ([[1.0] * 4] * 3, [[1.0] * 4, [0.0, 0.0, 0.0, 1.0], [0.0] * 4], [[0.0, 1.0, 0.0, 1.0]] * 3):
        batch = batch_of(5, model, rewards=rewards)
        first, second = one.update(batch), two.update(batch)
        assert second["gradient_norm"] == pytest.approx(first["gradient_norm"], rel=1e-5, abs=1e-9)
    assert_close(weights(two, model), weights(one, model), updates=3)


@pytest.mark.parametrize("plan", [DATA, STAGES, LAYERS], ids=lambda plan: plan.plan)
def test_a_value_head_learns_as_in_one_process(plan: ParallelConfig, ranks: RankProcesses, tmp_path: Path) -> None:
    model = qwen2()
    directory = saved(model, tmp_path / "model")
    one = single(directory, pipeline("ppo", value=ValueHeadConfig()))
    two = sharded(ranks, directory, pipeline("ppo", value=ValueHeadConfig()), parallel=plan)
    for seed in range(5):
        batch = batch_of(seed, model)
        first, second = one.update(batch), two.update(batch)
        assert second["value/loss"] == pytest.approx(first["value/loss"], rel=1e-4)
    assert_close(weights(two, model), weights(one, model), updates=5)


@pytest.mark.parametrize("plan", [DATA, STAGES], ids=lambda plan: plan.plan)
def test_adapters_train_with_a_reference(plan: ParallelConfig, ranks: RankProcesses, tmp_path: Path) -> None:
    model = qwen2()
    first = saved(model, tmp_path / "model")
    lora = plan_lora(model, rank=2)
    add_lora(model, lora)
    draw_first_adapters(model)
    start = single_checkpoint(model, tmp_path / "step-0")
    options: dict[str, Any] = {"first": first, "lora": lora, "reference": ReferenceConfig(ema_rate=0.3)}
    one, two = single(start, pipeline(), **options), sharded(ranks, start, pipeline(), parallel=plan, **options)
    for seed in range(3):
        one.update(batch_of(seed, model))
        two.update(batch_of(seed, model))
    assert_close(weights(two, model), weights(one, model), updates=3)
    for number, trainer in enumerate((one, two)):
        trainer.save(tmp_path / f"step-{number + 1}", tiny_model().tokenizer)
    assert names_in(tmp_path / "step-1") == names_in(tmp_path / "step-2")


def single_checkpoint(model: Any, directory: Path) -> Path:
    """A checkpoint of these weights before any update."""
    trainer_of(model, pipeline()).save(directory, tiny_model().tokenizer)
    return directory


@pytest.mark.parametrize("tied", [True, False])
def test_a_checkpoint_goes_on_under_any_plan(tied: bool, ranks: RankProcesses, tmp_path: Path) -> None:
    model = qwen2(tied=tied)
    directory = saved(model, tmp_path / "model")
    parts: dict[str, Any] = {"value": ValueHeadConfig()}
    options: dict[str, Any] = {"reference": ReferenceConfig(ema_rate=0.3)}

    def engines(start: Path) -> Iterator[Trainer]:
        """One after the other: processes hold one at a time."""
        yield single(start, pipeline("ppo", **parts), **options)
        for plan in (DATA, STAGES, LAYERS):
            yield sharded(ranks, start, pipeline("ppo", **parts), parallel=plan, **options)

    checkpoints = []
    for number, trainer in enumerate(engines(directory)):
        for seed in range(2):
            trainer.update(batch_of(seed, model))
        checkpoints.append(tmp_path / f"step-{number}")
        trainer.save(checkpoints[-1], tiny_model().tokenizer)
    assert names_in(checkpoints[0]) == names_in(checkpoints[1]) == names_in(checkpoints[2]) == names_in(checkpoints[3])
    wanted = None
    for checkpoint in checkpoints:
        for resumed in engines(checkpoint):
            resumed.restore(checkpoint)
            assert resumed.step == 2
            resumed.update(batch_of(9, model))
            found = weights(resumed, model)
            wanted = found if wanted is None else wanted
            assert_close(found, wanted, updates=3)


def test_two_runs_have_the_same_bytes(ranks: RankProcesses, tmp_path: Path) -> None:
    model = qwen2()
    directory = saved(model, tmp_path / "model")
    found = []
    for plan in (DATA, DATA, GATHERED_TWICE, STAGES, STAGES, LAYERS, LAYERS):
        trainer = sharded(ranks, directory, pipeline(), parallel=plan)
        for seed in range(3):
            trainer.update(batch_of(seed, model))
        found.append(weights(trainer, model).tobytes())
    assert found[0] == found[1] == found[2]
    assert found[3] == found[4] != found[0]
    assert found[5] == found[6] != found[0]


@pytest.mark.parametrize("plan", [DATA, STAGES, LAYERS], ids=lambda plan: plan.plan)
def test_what_is_published_has_the_layout_of_one_process(
    plan: ParallelConfig, ranks: RankProcesses, tmp_path: Path
) -> None:
    model = qwen2()
    directory = saved(model, tmp_path / "model")
    one, two = single(directory, pipeline()).engine, sharded(ranks, directory, pipeline(), parallel=plan).engine
    for dtype in ("float32", "bfloat16"):
        layout = layout_of(model, dtype)
        assert two.copy_weights(layout) == one.copy_weights(layout)


def test_a_pipeline_refuses_a_model_that_cannot_be_cut(ranks: RankProcesses, tmp_path: Path) -> None:
    """Before any rank waits for another in vain: the next plan starts on the same processes."""
    model = gemma()
    directory = saved(model, tmp_path / "model")
    with pytest.raises(ConfigError, match="pp2 cannot be"):
        sharded(ranks, directory, pipeline(), parallel=STAGES)
    sharded(ranks, directory, pipeline(), parallel=DATA).update(batch_of(0, model))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (gpt2, "a gpt2 model has no plan for it"),
        (llama, "the model has 1 key-value heads, which 2 ranks cannot share evenly"),
    ],
)
def test_a_tensor_group_refuses_a_model_that_it_cannot_cut(
    make: Callable[[], Any], reason: str, ranks: RankProcesses, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"tp2 cannot be: {reason}"):
        sharded(ranks, saved(make(), tmp_path / "model"), pipeline(), parallel=LAYERS)


def test_states_that_ranks_cannot_share_are_refused() -> None:
    with pytest.raises(ConfigError, match="one process only"):
        check_states("8bit")
    check_states("full")
