"""Training steps on a CUDA card: the CPU's gradients, the same bits each time, and memory that runs out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from p2prl.algorithms.loss_registry import BUILTIN_LOSSES, build_loss
from p2prl.learner.training.local_update_engine import make_trainer
from p2prl.learner.training.loss_guards import GuardConfig
from p2prl.learner.training.loss_pipeline import LossPipeline, LossPipelineConfig
from p2prl.learner.training.memory_config import PURE_BF16, Precision, weight_dtype
from p2prl.learner.training.micro_batch_log import MicroBatchLog
from p2prl.learner.training.micro_batches import MicroBatchRule
from p2prl.learner.training.optimizer_config import OptimizerConfig
from p2prl.learner.training.optimizer_step import StepMemory, Trainer
from p2prl.learner.training.reference_policy import ReferenceConfig
from p2prl.learner.training.training_group import TrainingGroup, training_group
from p2prl.learner.training.value_head import ValueHeadConfig
from p2prl.models.base_model.pretrained import load_pretrained
from p2prl.models.hardware.device_choice import repeat_exactly, use_exact_arithmetic
from p2prl.models.logprobs.policy_logprobs import completion_logprobs
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.weights.layout import TORCH_DTYPES, flatten, layout_of
from tests.unit.models.engines.test_cuda import CARD, CPU, little_memory
from tests.unit.models.small_decoders import wide_qwen2

if torch.cuda.is_available():
    # torch reads it once, at the first product on a card, which may be an earlier test's.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")

CONFIG = OptimizerConfig(learning_rate=1e-3, warmup_updates=3)
WHOLE, PARTS = 10_000, 120
"""Tokens of a micro-batch: the batch in one piece, and in several."""

PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "bf16_stochastic", "bf16_kahan")


@pytest.fixture
def repeats() -> Iterator[None]:
    """As in a learner's process."""
    fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    repeat_exactly(CARD)
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]


def batches(count: int, *, groups: int = 3, size: int = 4, longest: int = 24) -> list[list[TrainingGroup]]:
    """Groups with log-probs near those of the starting model."""
    model = wide_qwen2(seed=1)
    generator = torch.Generator().manual_seed(7)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    def group() -> TrainingGroup:
        prompt = tuple(draw(1, 5000) for _ in range(draw(3, 12)))
        completions = tuple(tuple(draw(1, 5000) for _ in range(draw(longest // 2, longest))) for _ in range(size))
        with torch.no_grad():
            logprobs, _ = completion_logprobs(model, [prompt] * size, completions, 1.0)
        rows = [row[: len(ids)] for row, ids in zip(logprobs, completions, strict=True)]
        behavior = tuple(tuple((row - 0.2 * torch.rand(len(row), generator=generator)).tolist()) for row in rows)
        return training_group(prompt, completions, behavior, (0.0, 1.0, 0.5, *map(float, range(size - 3))), draw(0, 3))

    return [[group() for _ in range(groups)] for _ in range(count)]


def trainer(
    device: torch.device,
    *,
    loss: str = "topr",
    tokens: int = WHOLE,
    precision: Precision = "fp32",
    checkpointing: bool = False,
    model: Any = None,
    **options: Any,
) -> Trainer:
    use_exact_arithmetic()
    log = MicroBatchLog()
    log.change(MicroBatchRule(tokens=tokens, checkpointing=checkpointing), from_step=0)
    value = ValueHeadConfig() if loss == "ppo" else None
    pipeline = LossPipeline(
        LossPipelineConfig(objective=build_loss(loss, max_completion_tokens=1000), value=value, **options)
    )
    held = TORCH_DTYPES[weight_dtype(precision)]
    return make_trainer(
        (model or wide_qwen2(seed=1)).to(device, held),
        pipeline,
        CONFIG,
        temperature=1.0,
        reference=ReferenceConfig(ema_rate=0.0 if precision in PURE_BF16 else 0.1),
        memory=StepMemory(precision=precision, rules=log),
    )


def state(of: Trainer) -> bytes:
    return bytes(flatten(of.model, layout_of(of.model, "float32")))


def gradient(of: Trainer, batch: list[TrainingGroup]) -> Tensor:
    of.gradient(batch)
    return torch.cat([parameter.grad.float().cpu().view(-1) for parameter in of.model.parameters()])


def apart(one: Tensor, other: Tensor) -> float:
    """Distance in units of the second one's length."""
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("tokens", [WHOLE, PARTS])
@pytest.mark.parametrize("loss", ["topr", "gepo_t", "grpo", "gspo", "dpo", "ppo"])
def test_gradients_are_those_of_the_cpu(loss: str, tokens: int) -> None:
    (batch,) = batches(1)
    card, cpu = (gradient(trainer(device, loss=loss, tokens=tokens), batch) for device in (CARD, CPU))
    assert float(cpu.norm()) > 0.0
    assert apart(card, cpu) < 1e-3


@pytest.mark.parametrize("precision", ["bf16", "bf16_kahan"])
def test_gradients_in_16_bits_are_near_those_in_32(precision: Precision) -> None:
    (batch,) = batches(1)
    short = gradient(trainer(CARD, precision=precision, tokens=PARTS), batch)
    assert apart(short, gradient(trainer(CPU, tokens=PARTS), batch)) < 0.1


@pytest.mark.usefixtures("repeats")
@pytest.mark.parametrize("loss", sorted(BUILTIN_LOSSES))
def test_every_loss_and_guard_repeats(loss: str) -> None:
    """None uses an operation that torch has no repeatable form of: it would raise."""
    (batch,) = batches(1)
    guards = GuardConfig(kl_brake=0.05, vcpo=True, second_moment=0.04, negative_tail=0.5)
    steps = [trainer(CARD, loss=loss, tokens=PARTS, guards=guards) for _ in range(2)]
    metrics = [each.update(batch) for each in steps]
    assert metrics[0] == metrics[1]
    assert state(steps[0]) == state(steps[1])


@pytest.mark.usefixtures("repeats")
@pytest.mark.parametrize(("tokens", "checkpointing"), [(WHOLE, False), (PARTS, False), (PARTS, True)])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_run_repeats_to_the_bit_also_from_a_checkpoint(
    precision: Precision, tokens: int, checkpointing: bool, tmp_path: Path
) -> None:
    work = batches(5, longest=40)

    def begun(model: Any = None) -> Trainer:
        return trainer(CARD, precision=precision, tokens=tokens, checkpointing=checkpointing, model=model)

    first, second = begun(), begun()
    for batch in work[:3]:
        assert first.update(batch) == second.update(batch)
    assert state(first) == state(second) != state(begun())
    first.save(tmp_path / "step-00000003", tiny_model().tokenizer)
    loaded = load_pretrained(str(tmp_path / "step-00000003"), device=CARD, dtype=weight_dtype(precision))
    resumed = begun(loaded.model)
    resumed.restore(tmp_path / "step-00000003")
    assert (resumed.step, state(resumed)) == (3, state(first))
    for batch in work[3:]:
        assert resumed.update(batch) == first.update(batch) == second.update(batch)
    assert state(resumed) == state(first) == state(second)


@pytest.mark.usefixtures("repeats")
def test_long_rows_repeat_too() -> None:
    """Attention's backward pass over many blocks is where sums have no fixed order by themselves."""
    (batch,) = batches(1, groups=2, longest=900)
    made = [trainer(CARD, precision=precision, tokens=2_000) for precision in ("fp32", "fp32", "bf16", "bf16")]
    bits = [gradient(each, batch).view(torch.int32) for each in made]
    assert torch.equal(bits[0], bits[1])
    assert torch.equal(bits[2], bits[3])


def test_micro_batches_are_halved_when_the_card_is_full() -> None:
    (small,), (batch,) = batches(1), batches(1, groups=2, longest=900)
    roomy = gradient(trainer(CARD), batch)
    pressed = trainer(CARD)
    gradient(pressed, small)  # libraries have taken what they need
    notices: list[str] = []
    with little_memory(220_000_000):
        pressed.gradient(batch, notices)
    assert notices
    assert pressed._rules.at(0).tokens < WHOLE // 2
    tight = torch.cat([parameter.grad.float().cpu().view(-1) for parameter in pressed.model.parameters()])
    assert apart(tight, roomy) < 1e-3
