"""A model of which each rank holds a part of every weight, gathered where it is used: torch's FSDP2.

Every weight is cut along its first dimension, as `torch.chunk` does. `Shards` are those parts as plain tensors, on
which an optimizer computes as it would on the whole.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from transformers.modeling_layers import GradientCheckpointingLayer

from p2prl.models.logprobs.scoring_model import ScoringModel
from p2prl.ranks.process_group import RankGroup


@dataclass(frozen=True, slots=True)
class Shard:
    """A rank's part of a weight."""

    name: str
    """Of the weight in the model."""
    parameter: nn.Parameter
    """The distributed parameter, in whose `.grad` gradients arrive."""
    local: Tensor
    """This rank's rows, (rows, …), in the parameter's own memory."""

    @property
    def shape(self) -> torch.Size:
        """Of the whole weight."""
        return self.parameter.shape

    @property
    def gradient(self) -> Tensor | None:
        """This rank's rows of the gradient; None without one."""
        return None if self.parameter.grad is None else _local(self.parameter.grad)


class ShardedModel:
    """A scoring model over ranks."""

    def __init__(self, scoring: ScoringModel, group: RankGroup, *, zero: int) -> None:
        """Keeps this rank's part of `scoring` and frees the rest."""
        for layer in scoring.modules():
            if isinstance(layer, GradientCheckpointingLayer):
                fully_shard(layer, mesh=group.mesh, reshard_after_forward=zero == 3)
        fully_shard(scoring, mesh=group.mesh, reshard_after_forward=False)
        self._modules = [module for module in scoring.modules() if isinstance(module, FSDPModule)]
        for module in self._modules:
            # The loss is a sum over all rows, not a mean over ranks. gloo scales sums wrongly: pytorch#162338.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
        self.scoring = scoring

    def shards(self) -> list[Shard]:
        """This rank's part of every weight, trained or not, in the model's order."""
        return [Shard(name, each, _local(each.detach())) for name, each in self.scoring.model.named_parameters()]

    def reshard(self) -> None:
        """Drop gathered weights: they are copies, which an optimizer's step does not reach."""
        for module in self._modules:
            module.reshard()

    def begin_again(self) -> None:
        """Forget a forward pass whose backward pass will not come."""
        root = self._modules[0]
        root.reset_iter_state()
        self.reshard()


def without_weights(model: Any) -> Any:
    """A copy of a model whose parameters take no memory."""
    return with_weights(model, {name: each.detach().to("meta") for name, each in model.named_parameters()})


def with_weights(model: Any, weights: Mapping[str, Tensor]) -> Any:
    """A copy of a model with other parameters, by name; tied ones are named once, and stay tied."""
    named = model.named_parameters()
    memo = {id(old): nn.Parameter(weights[name], requires_grad=old.requires_grad) for name, old in named}
    return copy.deepcopy(model, memo)


def _local(tensor: Any) -> Tensor:
    local: Tensor = tensor.to_local()
    return local
