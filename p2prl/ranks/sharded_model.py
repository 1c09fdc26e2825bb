"""Weights of which each rank holds a part, gathered where they are used: torch's FSDP2.

Every weight is cut along its first dimension, as `torch.chunk` does. `Shards` are those parts as plain tensors, on
which an optimizer computes as it would on the whole.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers.modeling_layers import GradientCheckpointingLayer

from p2prl.models.hardware.heap import trim_heap
from p2prl.models.logprobs.large_gradients import LARGE
from p2prl.ranks.process_group import RankMesh

_SUMS = MixedPrecisionPolicy(reduce_dtype=torch.float32)
"""Gradients of 16-bit weights add up in float32, and are rounded once."""


@dataclass(frozen=True, slots=True)
class WholeWeight:
    """A weight of the model as one process has it."""

    name: str
    shape: torch.Size
    dtype: torch.dtype
    trained: bool


def whole_weights(model: Any) -> list[WholeWeight]:
    """A model's weights in its order; tied ones once."""
    return [
        WholeWeight(name, each.shape, each.dtype, trained=each.requires_grad) for name, each in model.named_parameters()
    ]


@dataclass(frozen=True, slots=True)
class Shard:
    """A rank's rows of a weight, or its columns, which are then the rows of what it holds."""

    name: str
    """Of the weight in the model."""
    shape: torch.Size
    """Of the whole weight."""
    start: int
    """The first of these rows or columns in the whole weight."""
    by_columns: bool
    counts: bool
    """Whether this rank counts it where all ranks add up: of ranks that hold the same rows, one does."""
    is_part_sum: bool
    """Whether the gradient is the sum of those of the tensor group."""
    parameter: nn.Parameter
    """Of the model, in whose `.grad` gradients arrive: distributed where other ranks hold parts of it too."""
    local: Tensor
    """The rows, (rows, …), in the parameter's own memory."""

    @property
    def elements_before(self) -> int:
        """Elements of the whole weight, in the order in which it is held, before these rows."""
        return self.start * (self.shape.numel() // self.shape[1 if self.by_columns else 0])

    @property
    def gradient(self) -> Tensor | None:
        """The gradient's rows; None without one."""
        return None if self.parameter.grad is None else _local(self.parameter.grad)


@dataclass(frozen=True, slots=True)
class Held:
    """What a parameter of a rank's part of the model holds of a weight."""

    name: str
    """Of the weight in the model."""
    shape: torch.Size
    """Of the whole weight."""
    first: int = 0
    """Of the rows or columns that it holds."""
    by_columns: bool = False
    is_alike: bool = False
    """Whether every rank of the tensor group holds the same."""
    is_part_sum: bool = False
    """As in `Shard`."""


def shard_of(held: Held, parameter: nn.Parameter, mesh: RankMesh) -> Shard:
    """This rank's rows of a parameter."""
    each = -(-parameter.shape[0] // mesh.data)
    return Shard(
        name=held.name,
        shape=held.shape,
        start=held.first + min(mesh.data_index * each, parameter.shape[0]),
        by_columns=held.by_columns,
        counts=not held.is_alike or mesh.tensor_index == 0,
        is_part_sum=held.is_part_sum,
        parameter=parameter,
        local=_local(parameter.detach()),
    )


class ShardedModules:
    """Modules whose weights the ranks with other rows hold together; with one such rank they stay as they are."""

    def __init__(self, roots: Sequence[nn.Module], mesh: RankMesh, *, zero: int) -> None:
        """Keeps this rank's part of the weights in `roots` and frees the rest."""
        self._modules: list[FSDPModule] = []
        if mesh.data == 1:
            return
        for root in roots:
            for layer in checkpointing_layers(root):
                if layer is not root:
                    fully_shard(layer, mesh=mesh.data_mesh, reshard_after_forward=zero == 3, mp_policy=_SUMS)
            fully_shard(root, mesh=mesh.data_mesh, reshard_after_forward=False, mp_policy=_SUMS)
        self._roots = [root for root in roots if isinstance(root, FSDPModule)]
        self._modules = [module for root in roots for module in root.modules() if isinstance(module, FSDPModule)]
        for module in self._modules:
            # The loss is a sum over all rows, not a mean over ranks. gloo scales sums wrongly: pytorch#162338.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            module.set_custom_reduce_scatter(_SumInPlace())  # type: ignore[arg-type]  # torch does not export the class
            module.set_reshard_after_backward(zero == 3)

    def reshard(self) -> None:
        """Drop gathered weights: they are copies, which an optimizer's step does not reach."""
        for module in self._modules:
            module.reshard()

    def begin_again(self) -> None:
        """Forget forward passes whose backward pass will not come."""
        if self._modules:
            for root in self._roots:
                root.reset_iter_state()
            self.reshard()


class _SumInPlace:
    """The sum over ranks of each rank's part, for FSDP. gloo's own copies all parts, and adds up all of them on every
    rank."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for parts. For large ones the heap gives back the activations, which are free by now."""
        if device.type == "cpu" and math.prod(size) >= LARGE:
            trim_heap()
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> None:
        """Add up `input_tensor`, which is spent, and write this rank's part."""
        assert not async_op
        parts = input_tensor.view(group.size(), -1)
        for number, part in enumerate(parts):
            dist.reduce(part, dist.get_global_rank(group, number), group=group, op=op)
        output_tensor.copy_(parts[group.rank()].view_as(output_tensor))


def checkpointing_layers(module: nn.Module) -> list[Any]:
    """The layers of a model, in order."""
    return [layer for layer in module.modules() if isinstance(layer, GradientCheckpointingLayer)]


def without_weights(model: Any) -> Any:
    """A copy of a model whose parameters take no memory."""
    return with_weights(model, {name: each.detach().to("meta") for name, each in model.named_parameters()})


def with_weights(model: Any, weights: Mapping[str, Tensor]) -> Any:
    """A copy of a model with other parameters, by name; tied ones are named once, and stay tied."""
    named = model.named_parameters()
    memo = {id(old): nn.Parameter(weights[name], requires_grad=old.requires_grad) for name, old in named}
    return copy.deepcopy(model, memo)


def drop_weights(model: Any, kept: Iterable[nn.Parameter]) -> None:
    """Free all parameters of a model but those `kept`; it still has their names and shapes. Tied ones stay tied."""
    memo = {id(parameter): parameter for parameter in kept}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                empty = nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
                module._parameters[name] = memo.setdefault(id(parameter), empty)


def _local(tensor: Any) -> Tensor:
    local: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local
