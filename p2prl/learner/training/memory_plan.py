"""Choice of the micro-batches of a run from the memory there is, and refusal of a run that cannot fit. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields

from p2prl.errors import MachineError
from p2prl.learner.training.memory_config import MemoryConfig, OptimizerStates, Precision
from p2prl.learner.training.memory_model import (
    MemoryNeeds,
    ModelShape,
    TrainingSetup,
    activation_bytes,
    memory_needs,
    token_bytes,
    value_bytes,
)
from p2prl.learner.training.micro_batches import MicroBatchRule

USABLE_SHARE = 0.9
"""Share of the free memory to plan with: allocators leave gaps, and other programs grow."""

_MOST_TOKENS = {"cpu": 2048}
"""Most tokens of a micro-batch by device type. More save no time on a CPU."""

_MOST_TOKENS_ELSEWHERE = 16_384

_SMALL_BYTES = 256_000_000
"""Activations that no machine lacks. A micro-batch may always have these, so that a small model trains in one piece."""

_ENOUGH_TOKENS = 1024
"""With fewer tokens a micro-batch wastes time on reading the weights, more than checkpointing costs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPlan:
    """Memory and micro-batches of a learner."""

    precision: Precision = "fp32"
    states: OptimizerStates = "full"
    rule: MicroBatchRule
    """For a run that has none yet, or whose settings name it."""
    most_tokens: int
    """Tokens of a micro-batch that fit into all of the free memory."""
    most_tokens_checkpointed: int = 0
    """The same with checkpointing; 0 where nothing was predicted."""
    asks_tokens: bool = False
    """Whether the settings name the number of tokens, so that they replace what the run has used so far."""
    asks_checkpointing: bool = False
    """Whether the settings say to use checkpointing, or not to."""
    needs: MemoryNeeds | None = None
    """Predicted peak; None where nothing was predicted."""

    def allows(self, rule: MicroBatchRule) -> bool:
        """Whether a run's recorded rule fits the memory there is."""
        most = max(self.most_tokens, self.most_tokens_checkpointed) if rule.checkpointing else self.most_tokens
        return rule.tokens <= most

    def changes(self, rule: MicroBatchRule) -> bool:
        """Whether the settings ask for another rule than a run's recorded one."""
        other_tokens = self.asks_tokens and rule.tokens != self.rule.tokens
        return other_tokens or (self.asks_checkpointing and rule.checkpointing != self.rule.checkpointing)

    def text(self, free_bytes: int, device: str) -> str:
        """One line for the user."""
        assert self.needs is not None
        return (
            f"Memory: {_size(self.needs.total)} needed, {_size(free_bytes)} free on {device} ({_parts(self.needs)}),"
            f" {self.precision}, micro-batches of up to {self.rule.text}"
        )


def plan_memory(
    shape: ModelShape, setup: TrainingSetup, config: MemoryConfig, *, free_bytes: int, longest_row: int
) -> MemoryPlan:
    """The plan for a model on a device with `free_bytes`.

    `longest_row` is the length of the longest completion with its prompt, in tokens. Raises `MachineError` when not
    even one row at a time fits.
    """
    if config.limit_gb:
        free_bytes = min(free_bytes, int(config.limit_gb * 1e9))
    small = int(_SMALL_BYTES / token_bytes(shape, setup.precision, checkpointing=False))
    most = max(small, _MOST_TOKENS.get(setup.device_type, _MOST_TOKENS_ELSEWHERE))
    wanted = config.micro_batch_tokens or most
    choices = {"auto": (False, True), "on": (True,), "off": (False,)}[config.checkpointing]
    usable = int(free_bytes * USABLE_SHARE)
    found = [(_tokens_in(usable, shape, setup, checkpointing=each), each) for each in choices]
    enough = min(wanted, max(longest_row, _ENOUGH_TOKENS))
    fit, checkpointing = next((each for each in found if each[0] >= enough), found[-1])
    if fit < longest_row:
        least = memory_needs(shape, setup, MicroBatchRule(tokens=longest_row, checkpointing=checkpointing))
        raise _cannot_fit(least, setup, free_bytes, checkpointing=checkpointing)
    rule = MicroBatchRule(
        tokens=max(min(fit, wanted), longest_row), checkpointing=checkpointing, plan=setup.parallel.name
    )
    return MemoryPlan(
        precision=setup.precision,
        states=setup.states,
        rule=rule,
        most_tokens=_tokens_in(free_bytes, shape, setup, checkpointing=False),
        most_tokens_checkpointed=_tokens_in(free_bytes, shape, setup, checkpointing=True),
        asks_tokens=bool(config.micro_batch_tokens),
        asks_checkpointing=config.checkpointing != "auto",
        needs=memory_needs(shape, setup, rule),
    )


def _tokens_in(memory_bytes: int, shape: ModelShape, setup: TrainingSetup, *, checkpointing: bool) -> int:
    """Tokens of the largest micro-batch that this much memory holds."""
    fixed = memory_needs(shape, setup, MicroBatchRule(tokens=0, checkpointing=checkpointing))
    if fixed.total > memory_bytes:
        return 0
    left = memory_bytes - (fixed.total - fixed.sharing)
    each = activation_bytes(shape, setup, checkpointing=checkpointing)
    return max(0, int(left / (each + (value_bytes(shape) if setup.value_head else 0))))


def _cannot_fit(needs: MemoryNeeds, setup: TrainingSetup, free_bytes: int, *, checkpointing: bool) -> MachineError:
    remedies = []
    if not checkpointing:
        remedies.append('checkpointing = "on"')
    if setup.states == "full":
        remedies.append('optimizer_states = "8bit" (before the first update)')
    if setup.precision in ("fp32", "bf16"):
        remedies.append('precision = "bf16_stochastic"')
    settings = f"Set {', '.join(remedies)} in [learner.memory] of run.toml; or make" if remedies else "Make"
    return MachineError(
        f"training needs {_size(needs.total)} with one completion at a time ({_parts(needs)}),"
        f" and {_size(free_bytes)} are free",
        remedy=f"{settings} a run with shorter completions or a smaller model, or use a larger machine.",
    )


def _parts(needs: MemoryNeeds) -> str:
    sizes = {each.name.replace("_", " "): getattr(needs, each.name) for each in fields(needs)}
    return ", ".join(f"{name} {_size(value)}" for name, value in sizes.items() if value)


def _size(count: float) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.0f} MB"
