"""Trainer under memory pressure: it halves micro-batches, repeats the step exactly, and resumes to the bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from p2prl.algorithms.loss_registry import build_loss
from p2prl.errors import MachineError
from p2prl.learner.training.local_update_engine import make_trainer
from p2prl.learner.training.loss_pipeline import LossPipeline, LossPipelineConfig
from p2prl.learner.training.memory_config import PURE_BF16, Precision, weight_dtype
from p2prl.learner.training.micro_batch_log import MicroBatchLog
from p2prl.learner.training.micro_batches import MicroBatchRule
from p2prl.learner.training.optimizer_config import OptimizerConfig
from p2prl.learner.training.optimizer_step import StepMemory, Trainer
from p2prl.learner.training.reference_policy import ReferenceConfig
from p2prl.learner.training.training_group import TrainingGroup, training_group
from p2prl.models.base_model.pretrained import load_pretrained
from p2prl.models.hardware.failures import is_out_of_memory
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.weights.layout import TORCH_DTYPES, flatten, layout_of

CONFIG = OptimizerConfig(learning_rate=1e-3, warmup_updates=3)


def batches(count: int) -> list[list[TrainingGroup]]:
    """Batches of three groups of four completions of 1 to 6 tokens."""
    generator = torch.Generator().manual_seed(7)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    def group() -> TrainingGroup:
        completions = tuple(tuple(draw(0, 10) for _ in range(draw(1, 7))) for _ in range(4))
        behavior = tuple(tuple(-0.1 * draw(10, 40) for _ in ids) for ids in completions)
        rewards = (0.0, 1.0, *(float(draw(0, 3)) for _ in range(2)))
        return training_group((14, *(draw(0, 10) for _ in range(4))), completions, behavior, rewards, draw(0, 3))

    return [[group() for _ in range(3)] for _ in range(count)]


def loss() -> LossPipeline:
    return LossPipeline(LossPipelineConfig(objective=build_loss("gepo_t")))


def trainer(
    model: Any,
    tokens: int,
    *,
    precision: Precision = "fp32",
    reference: bool = False,
    log: MicroBatchLog | None = None,
) -> Trainer:
    if log is None:
        log = MicroBatchLog()
        log.change(MicroBatchRule(tokens=tokens), from_step=0)
    return make_trainer(
        model,
        loss(),
        CONFIG,
        temperature=1.0,
        reference=ReferenceConfig(ema_rate=0.0 if precision in PURE_BF16 else 0.1) if reference else None,
        memory=StepMemory(precision=precision, rules=log),
    )


def model_in(precision: Precision = "fp32") -> Any:
    return tiny_model(seed=2).model.to(TORCH_DTYPES[weight_dtype(precision)])


def state(of: Trainer) -> bytes:
    return bytes(flatten(of.model, layout_of(of.model, "float32")))


def small_machine(model: Any, *, rows: int, error: Callable[[], Exception]) -> None:
    """From now on the model runs out of memory on more rows than these."""

    def check(_: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        ids = named["input_ids"] if "input_ids" in named else arguments[0]
        if len(ids) > rows:
            raise error()

    model.base_model.register_forward_pre_hook(check, with_kwargs=True)


def test_out_of_memory_halves_micro_batches_and_repeats_the_step() -> None:
    work = batches(3)
    pressed = trainer(tiny_model(seed=2).model, 10_000, reference=True)
    pressed.update(work[0])
    small_machine(pressed.model, rows=3, error=lambda: torch.OutOfMemoryError("out of memory"))
    metrics = [pressed.update(batch) for batch in work[1:]]
    assert not pressed.notices  # told once, at the update where it happened

    log = MicroBatchLog()
    log.change(MicroBatchRule(tokens=10_000), from_step=0)
    log.change(pressed._rules.at(1), from_step=1)
    assert log.at(1).tokens <= 3 * 11
    roomy = trainer(tiny_model(seed=2).model, 0, reference=True, log=log)
    assert [roomy.update(batch) for batch in work][1:] == metrics
    assert state(roomy) == state(pressed)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 18 GB)"), True),
        (MemoryError(), True),
        (RuntimeError("shapes do not match"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_a_lack_of_memory_is_told_from_other_errors(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


def test_torch_says_so_when_a_cpu_tensor_is_too_large() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


def test_the_smaller_micro_batches_are_reported_and_recorded(tmp_path: Path) -> None:
    log = MicroBatchLog(tmp_path / "log")
    subject = trainer(tiny_model(seed=2).model, 0, log=log)
    small_machine(subject.model, rows=5, error=lambda: torch.OutOfMemoryError("out of memory"))
    subject.update(batches(1)[0])
    assert "memory ran out; micro-batches have up to" in subject.notices[-1]
    assert MicroBatchLog(tmp_path / "log").at(0).tokens <= 5 * 11


def test_no_room_for_one_completion_is_an_error_with_remedies() -> None:
    subject = trainer(tiny_model(seed=2).model, 1000)
    before = state(subject)
    small_machine(subject.model, rows=0, error=lambda: torch.OutOfMemoryError("out of memory"))
    with pytest.raises(MachineError, match="with a single completion") as caught:
        subject.update(batches(1)[0])
    assert "checkpointing" in caught.value.remedy
    assert (state(subject), subject.step) == (before, 0)


def test_other_errors_are_not_taken_for_a_lack_of_memory() -> None:
    subject = trainer(tiny_model(seed=2).model, 1000)
    small_machine(subject.model, rows=0, error=lambda: RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError, match="shapes"):
        subject.update(batches(1)[0])


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16_stochastic", "bf16_kahan"])
def test_micro_batches_resume_to_the_bit(precision: Precision, tmp_path: Path) -> None:
    work = batches(4)
    made = tiny_model(seed=2)
    model = model_in(precision)
    straight = trainer(model, 30, precision=precision, reference=True)
    for batch in work[:2]:
        straight.update(batch)
    straight.save(tmp_path / "step-00000002", made.tokenizer)
    loaded = load_pretrained(
        str(tmp_path / "step-00000002"), device=torch.device("cpu"), dtype=weight_dtype(precision)
    ).model
    resumed = trainer(loaded, 30, precision=precision, reference=True)
    resumed.restore(tmp_path / "step-00000002")
    for batch in work[2:]:
        assert straight.update(batch) == resumed.update(batch)
        assert state(straight) == state(resumed)


def test_micro_batches_train_as_one_batch_does() -> None:
    work = batches(5)
    whole, split = trainer(tiny_model(seed=2).model, 10_000), trainer(tiny_model(seed=2).model, 25)
    for batch in work:
        one, other = whole.update(batch), split.update(batch)
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4, abs=1e-6)
        assert one["gradient_norm"] == pytest.approx(other["gradient_norm"], rel=1e-3)
    assert state(whole) != state(split)  # the order of sums differs, so the comparison is not with itself


def test_a_policy_that_is_not_finite_is_reported_from_micro_batches_too() -> None:
    subject = trainer(tiny_model(seed=2).model, 25)
    with torch.no_grad():
        subject.model.transformer.h[0].mlp.c_fc.weight[0, 0] = float("inf")
    with pytest.raises(MachineError, match="the policy at update 0 is not finite"):
        subject.update(batches(1)[0])
