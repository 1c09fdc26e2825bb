"""The engine of a learner that trains over several processes: rank 0 among its ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from p2prl.errors import ConfigError, ProcessLostError
from p2prl.learner.training.memory_config import OptimizerStates
from p2prl.learner.training.micro_batches import MicroBatchRule
from p2prl.learner.training.policy_gradient import TokenScores
from p2prl.learner.training.trainer_checkpoint import TrainerNumbers, TrainerTensors, save_checkpoint
from p2prl.learner.training.update_engine import GradientNorms
from p2prl.models.hardware.failures import is_out_of_memory
from p2prl.models.logprobs.policy_forward import Row
from p2prl.models.weights.layout import WeightLayout, flatten
from p2prl.ranks import commands
from p2prl.ranks.execution import execute
from p2prl.ranks.process_group import RankGroup
from p2prl.ranks.rank import Rank, check_plan
from p2prl.ranks.sharded_model import with_weights, without_weights


class OtherRanks(Protocol):
    """The other ranks, as rank 0 sees them."""

    group: RankGroup
    """All ranks, and this one among them."""

    def send(self, command: commands.Command) -> None:
        """Send a command to all of them. `ProcessLostError` when one is gone."""
        ...

    def check(self) -> None:
        """`ProcessLostError` if one has ended."""
        ...

    def lost(self) -> None:
        """A collective has failed: wait a moment for the rank that ended, and raise `ProcessLostError`."""
        ...

    def close(self) -> None:
        """End them."""
        ...


class ShardedEngine:
    """An `UpdateEngine` over the ranks of a plan."""

    def __init__(self, model: Any, ranks: OtherRanks, load: commands.Load) -> None:
        """`load` tells the other ranks to load what `model` is. `ConfigError` for what ranks cannot compute."""
        check_states(load.settings.states)
        check_plan(model, load.settings, load.parallel)
        self._ranks = ranks
        self._shell = without_weights(model)
        ranks.send(load)
        self._rank = self._guarded(lambda: Rank(model, load.settings, ranks.group, load.parallel))
        self.model = model

    @property
    def device(self) -> torch.device:
        return self._ranks.group.device

    def reference_logprobs(self, rows: Sequence[Row], rule: MicroBatchRule) -> Tensor | None:
        if not self._rank.has_reference:
            return None
        found: Tensor = self._together(_score(rows, rule, reference=True))
        return found

    def score(self, rows: Sequence[Row], rule: MicroBatchRule) -> TokenScores:
        found: TokenScores = self._together(_score(rows, rule))
        return found

    def push(self, coefficients_NT: Tensor, value_coefficients_NT: Tensor | None = None) -> None:
        values = None if value_coefficients_NT is None else commands.Numbers.of(value_coefficients_NT)
        self._together(commands.Push(commands.Numbers.of(coefficients_NT), values))

    def forget(self) -> None:
        self._together(commands.Forget())

    def clip(self, most: float) -> GradientNorms:
        norms: GradientNorms = self._together(commands.Clip(most))
        return norms

    def gradients(self) -> dict[str, Tensor]:
        """The whole gradient of the batch pushed last, by the weight's name, on the CPU."""
        found: dict[str, Tensor] = self._together(commands.GatherGradients())
        return found

    def step(self, learning_rate: float, *, value_factor: float, number: int) -> None:
        self._together(commands.Step(learning_rate, value_factor, number))

    def copy_weights(self, layout: WeightLayout, into: bytearray | None = None) -> bytearray:
        return flatten(self._whole_model(layout.tensors[0].dtype), layout, into)

    def save(self, directory: Path, tokenizer: Any, numbers: TrainerNumbers) -> None:
        optimizer, reference = self._together(commands.GatherState())
        tensors = TrainerTensors(optimizer=optimizer, reference=reference, value=self._rank.value_tensors())
        save_checkpoint(directory, self._whole_model(None), tokenizer, numbers, tensors)

    def restore(self, directory: Path) -> None:
        self._together(commands.Restore(str(directory)))

    def check(self) -> None:
        self._ranks.check()

    def close(self) -> None:
        self._ranks.close()

    def _whole_model(self, dtype: str | None) -> Any:
        """The model with all weights, on the CPU."""
        weights = self._together(commands.Gather(dtype))
        return with_weights(self._shell, weights)

    def _together(self, command: commands.Command) -> Any:
        """Execute a command on every rank; returns this one's result."""
        self._ranks.send(command)
        return self._guarded(lambda: execute(command, self._rank))

    def _guarded(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                # The others wait in the middle of a collective, so this process cannot begin again without them.
                raise ProcessLostError(
                    "memory ran out in rank 0 of the learner",
                    remedy="Lower micro_batch_tokens in [learner.memory] of run.toml, or free some memory; the run"
                    " resumes before this update.",
                ) from error
            self._ranks.lost()
            raise


def _score(rows: Sequence[Row], rule: MicroBatchRule, *, reference: bool = False) -> commands.Score:
    return commands.Score(commands.Rows.of(rows), rule.tokens, rule.checkpointing, reference)


def check_states(states: OptimizerStates) -> None:
    """`ConfigError` for an optimizer whose step on a part of a weight differs from that on the whole.

    8-bit states share a scale for every 256 elements, wherever a rank's part begins.
    """
    if states == "8bit":
        raise ConfigError(
            'optimizer_states = "8bit" trains in one process only',
            remedy='Set optimizer_states = "full" in [learner.memory] of run.toml, or leave out --ranks and --plan.',
        )
