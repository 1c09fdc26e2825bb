"""One rank's part of every command. All ranks run this code on the same commands, so their collectives meet."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from p2prl.algorithms.guards import ema_update
from p2prl.learner.training.bf16_adamw import PartOfParameter
from p2prl.learner.training.micro_batches import MicroBatchRule
from p2prl.learner.training.parallel_config import ParallelConfig
from p2prl.learner.training.policy_gradient import TokenScores
from p2prl.learner.training.trainer_checkpoint import OPTIMIZER_FILE, REFERENCE_FILE, load_value
from p2prl.learner.training.update_engine import EngineSettings, GradientNorms
from p2prl.learner.training.value_head import TokenValues, ValueHead
from p2prl.learner.training.weight_optimizer import WeightOptimizer
from p2prl.models.logprobs.policy_forward import Row
from p2prl.ranks.data_parallel import DataParallelPolicy
from p2prl.ranks.gathering import Gathering
from p2prl.ranks.pipeline import PipelinePolicy
from p2prl.ranks.pipeline_stages import check_stages
from p2prl.ranks.process_group import RankGroup
from p2prl.ranks.rank_policy import PolicySettings, RankPolicy
from p2prl.ranks.sharded_model import Shard, whole_weights
from p2prl.ranks.tensor_parallel import check_tensor_plan

_BLOCK = 1 << 19
"""Elements of a gradient that are widened at once."""


class Rank:
    """Weights, gradients and optimizer state of this rank."""

    def __init__(self, model: Any, settings: EngineSettings, group: RankGroup, parallel: ParallelConfig) -> None:
        """Every rank holds all of `model` when it begins, and its part of it from then on.

        It is one that `check_plan` passes.
        """
        self._group = group
        self._mesh = group.mesh(parallel)
        self._settings = settings
        model = model.eval()
        self._value = None
        if settings.value is not None:
            self._value = ValueHead(model.config.get_text_config().hidden_size, settings.value, group.device)
        weights = whole_weights(model)
        self._numbers = {each.name: i for i, each in enumerate(each for each in weights if each.trained)}
        self._of_all = sum(each.shape.numel() for each in weights if each.trained)
        frozen = copy.deepcopy(model).requires_grad_(False) if settings.reference is not None else None
        computed = _policy_settings(settings, parallel)
        self._policy = self._placed(model, computed, self._value)
        self._reference = None
        if frozen is not None:  # it runs once an update, so its weights are whole for a moment only
            self._reference = self._placed(frozen, replace(computed, zero=3), None)
        self.trained = [shard for shard in self._policy.shards if shard.name in self._numbers]
        """This rank's part of what is trained."""
        self._optimizer = WeightOptimizer(
            [shard.local for shard in self.trained],
            settings.optimizer,
            precision=settings.precision,
            states=settings.states,
            parts=[
                PartOfParameter(
                    number=self._numbers[shard.name],
                    first=shard.elements_before,
                    elements=shard.shape.numel(),
                    rows=shard.shape[0] if shard.by_columns else 0,
                )
                for shard in self.trained
            ],
            parameters_of_all=self._of_all,
        )
        self._gathering = Gathering(weights, self._policy.shards, group)

    def _placed(self, model: Any, settings: PolicySettings, value: ValueHead | None) -> RankPolicy:
        if self._mesh.shares > 1:
            return PipelinePolicy(model, self._mesh, settings, value)
        return DataParallelPolicy(model, self._mesh, settings, value)

    @property
    def has_reference(self) -> bool:
        """Whether there is a reference policy."""
        return self._reference is not None

    def reference_logprobs(self, rows: Sequence[Row], rule: MicroBatchRule) -> Tensor:
        """Log-probs (N, T) of the reference policy, on every rank."""
        assert self._reference is not None
        return self._reference.logprobs(rows, rule)

    def score(self, rows: Sequence[Row], rule: MicroBatchRule) -> TokenScores:
        """Log-probs and values of the batch, on every rank."""
        found = self._policy.score(rows, rule)
        return TokenScores(
            found.logprobs_NT, None if self._value is None else TokenValues(found.values_NT, found.average_NT)
        )

    def push(self, coefficients_NT: Tensor, value_coefficients_NT: Tensor | None) -> None:
        """Add the gradient over the batch scored last to this rank's part."""
        coefficients_NT = coefficients_NT.to(self._group.device)
        value_NT = torch.zeros_like(coefficients_NT)
        if value_coefficients_NT is not None:
            value_NT = value_coefficients_NT.to(self._group.device)
        self._policy.push(coefficients_NT, value_NT)
        for shard in self.trained:  # a batch without advantages has zeros, as it has on one rank
            gradient = shard.gradient
            if shard.is_part_sum and gradient is not None:
                self._mesh.add_up_tensor(gradient)
            shard.local.grad = torch.zeros_like(shard.local) if gradient is None else gradient

    def forget(self) -> None:
        """Free gradients and graphs."""
        self._policy.forget()
        for shard in self.trained:
            shard.parameter.grad = shard.local.grad = None
        if self._value is not None:
            self._value.zero_gradients()

    def clip(self, most: float) -> GradientNorms:
        """Scale the gradient down; norms are of the whole gradient, equal on every rank."""
        gradients = [shard.local.grad for shard in self.trained if shard.local.grad is not None]
        counted = [shard.local.grad for shard in self.trained if shard.local.grad is not None and shard.counts]
        squares = torch.stack([square_sum(gradient) for gradient in counted]).sum()
        norm = self._group.add_up(squares).sqrt().float()
        factor = (most / (norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factor.to(gradient.dtype))
        if self._value is None:
            return GradientNorms(norm)
        for parameter in self._value.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            self._mesh.add_up_data(parameter.grad)
        return GradientNorms(norm, torch.nn.utils.clip_grad_norm_(self._value.parameters, most))

    def step(self, learning_rate: float, *, value_factor: float, number: int) -> None:
        """One optimizer step on this rank's part."""
        self._policy.before_step()
        self._optimizer.step(learning_rate, number=number)
        if self._value is not None:
            self._value.step(value_factor)
        self.forget()
        reference = self._settings.reference
        if reference is not None and reference.ema_rate > 0:
            assert self._reference is not None
            self._reference.before_step()
            policy = [shard.local for shard in self.trained]
            ema_update([shard.local for shard in self.reference], policy, rate=reference.ema_rate)

    @property
    def reference(self) -> list[Shard]:
        """This rank's part of the reference policy, of what is trained; empty without one."""
        if self._reference is None:
            return []
        return [shard for shard in self._reference.shards if shard.name in self._numbers]

    def gather(self, *, dtype: str | None) -> dict[str, Tensor]:
        """Whole weights by name, on rank 0's CPU; empty elsewhere. Rounded to `dtype` before they are sent."""
        return self._gathering.weights(self._policy.shards, dtype=dtype)

    def gather_gradients(self) -> dict[str, Tensor]:
        """The whole gradient by the weight's name, on rank 0's CPU; empty elsewhere."""
        return self._gathering.gradients(self.trained)

    def gather_state(self) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
        """The optimizer's state, and the reference policy's weights if there is one, as a checkpoint has them."""
        optimizer = self._gathering.state(self._optimizer_rows())
        return optimizer, None if self._reference is None else self._gathering.trained(self.reference)

    def _optimizer_rows(self) -> dict[str, dict[str, Tensor]]:
        """This rank's rows of the optimizer's state, and its numbers, by the weight's number and the state's name."""
        found: dict[str, dict[str, Tensor]] = {}
        for key, tensor in self._optimizer.tensors().items():
            index, _, name = key.partition(".")
            found.setdefault(str(self._numbers[self.trained[int(index)].name]), {})[name] = tensor
        return found

    def value_tensors(self) -> Mapping[str, Tensor] | None:
        """The value head, which every rank has whole."""
        return None if self._value is None else self._value.tensors()

    def restore(self, directory: Path) -> None:
        """Read this rank's rows of a checkpoint's state."""
        with ExitStack() as files:
            saved = files.enter_context(safe_open(directory / OPTIMIZER_FILE, framework="pt"))
            places = {str(self._numbers[shard.name]): (i, shard) for i, shard in enumerate(self.trained)}
            tensors = {}
            for key in saved.keys():  # noqa: SIM118 - not a dict
                number, _, name = key.partition(".")
                if number in places:
                    index, shard = places[number]
                    tensors[f"{index}.{name}"] = _rows_of(saved, key, shard)
            self._optimizer.restore(tensors)
            if self._reference is not None and (path := directory / REFERENCE_FILE).exists():
                saved = files.enter_context(safe_open(path, framework="pt"))
                with torch.no_grad():
                    for shard in self.reference:
                        shard.local.copy_(_rows_of(saved, str(self._numbers[shard.name]), shard))
        value = load_value(directory)
        if self._value is not None and value is not None:
            self._value.restore(value)


def square_sum(gradient: Tensor) -> Tensor:
    """Sum of squares in float64. All blocks are widened in one place: allocators do not always give freed copies of a
    block's size to the next."""
    blocks = torch.split(gradient.reshape(-1), _BLOCK)
    wide = torch.empty(blocks[0].numel(), dtype=torch.float64, device=gradient.device)
    sums = []
    for block in blocks:
        part = wide[: block.numel()].copy_(block)
        sums.append(torch.dot(part, part))
    return torch.stack(sums).sum()


def check_plan(model: Any, settings: EngineSettings, parallel: ParallelConfig) -> None:
    """`ConfigError` for a model that the plan does not fit, before any other rank is told of it."""
    check_tensor_plan(model, parallel.tensor)
    check_stages(model, parallel, _policy_settings(settings, parallel))


def _policy_settings(settings: EngineSettings, parallel: ParallelConfig) -> PolicySettings:
    return PolicySettings(temperature=settings.temperature, autocast=settings.autocast, zero=parallel.zero)


def _rows_of(saved: Any, name: str, shard: Shard) -> Tensor:
    """A shard's rows of a saved tensor; a number is whole on every rank."""
    piece = saved.get_slice(name)
    if tuple(piece.get_shape()) != tuple(shard.shape):
        whole: Tensor = saved.get_tensor(name)
        return whole
    rows = slice(shard.start, shard.start + shard.local.shape[0])
    found: Tensor = piece[:, rows].T.contiguous() if shard.by_columns else piece[rows]
    return found
