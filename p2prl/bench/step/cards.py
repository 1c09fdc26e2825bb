"""Predicted memory of training on cards of common sizes, by the learner's own memory model."""

from __future__ import annotations

from collections.abc import Iterator

from p2prl.errors import MachineError
from p2prl.learner.training.memory_config import MemoryConfig
from p2prl.learner.training.memory_model import ModelShape, TrainingSetup, memory_needs
from p2prl.learner.training.memory_plan import MemoryPlan, plan_memory
from p2prl.learner.training.micro_batches import MicroBatchRule
from p2prl.planning.model_shapes import model_named

CARDS_GB = (8, 12, 16, 24, 80, 141)
"""10⁹ bytes of a card; a tenth is left free."""

LONGEST_ROW = 1280
"""Tokens: a prompt of 256 and a completion of 1,024."""

SIZES = ("0.5b", "1.5b", "7b", "8b")

_SETTINGS = (
    MemoryConfig(precision="bf16"),
    MemoryConfig(precision="bf16", optimizer_states="8bit"),
    MemoryConfig(precision="bf16_kahan"),
    MemoryConfig(precision="bf16_stochastic"),
    MemoryConfig(precision="bf16_stochastic", optimizer_states="8bit"),
)


def cards_table() -> str:
    """A Markdown table: the least memory of each model and setting, and micro-batches on each card."""
    cards = " | ".join(f"{size} GB" for size in CARDS_GB)
    return "\n".join(
        [f"| model | precision | states | least, GB | {cards} |", "|---" * (4 + len(CARDS_GB)) + "|", *_rows()]
    )


def _rows() -> Iterator[str]:
    for model in map(model_named, SIZES):
        name, shape = model.title, model.shape
        for config in _SETTINGS:
            setup = TrainingSetup(
                precision=config.precision_on("cuda", "bfloat16"),
                states=config.optimizer_states,
                replay_bytes=2,
                published_bytes=0,
                device_type="cuda",
            )
            least = memory_needs(shape, setup, MicroBatchRule(tokens=LONGEST_ROW, checkpointing=True)).total
            cells = " | ".join(_cell(shape, setup, config, size) for size in CARDS_GB)
            yield f"| {name} | {config.precision} | {config.optimizer_states} | {least / 1e9:.1f} | {cells} |"


def _cell(shape: ModelShape, setup: TrainingSetup, config: MemoryConfig, size_gb: int) -> str:
    """Tokens of a micro-batch, marked where it needs checkpointing; a dash where nothing fits."""
    try:
        plan: MemoryPlan = plan_memory(
            shape, setup, config, free_bytes=size_gb * 1_000_000_000, longest_row=LONGEST_ROW
        )
    except MachineError:
        return "–"
    return f"{plan.rule.tokens:,}{' c' if plan.rule.checkpointing else ''}"
