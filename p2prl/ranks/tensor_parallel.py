"""Linear layers cut among the ranks of a tensor group, by the model's own plan, as in Megatron-LM (arXiv 1909.08053).

A plan (`base_model_tp_plan` of transformers' configurations) names the layers that are cut by their outputs, "colwise",
and those after them that are cut by their inputs, "rowwise". Everything else is whole on every rank and computes the
same there. Weights are plain tensors: torch's DTensor took five times the processor time of the product itself.

Shapes: … any, I input, O output features, of which a rank has a share.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from p2prl.errors import ConfigError

_BY_OUTPUTS, _BY_INPUTS, _SUMMED = "colwise", "rowwise", "replicated_with_grad_allreduce"

AddUp = Callable[[Tensor], Tensor]
"""The sum over the ranks of a tensor group, as a new tensor or in place."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a parameter of a cut layer holds of the model's."""

    whole: nn.Parameter
    first: int
    """Of the rows, or of the columns, that it holds."""
    by_columns: bool = False
    """Whether it holds columns, which are its rows: all that is cut is cut along a first dimension."""


class Entrance:
    """Where whole activations enter cut layers: their gradient is the sum over ranks, once for all layers that share
    them."""

    def __init__(self, add_up: AddUp) -> None:
        self._add_up = add_up
        self._newest: tuple[weakref.ref[Tensor], weakref.ref[Tensor]] | None = None

    def __call__(self, activations: Tensor) -> Tensor:
        """The same activations."""
        if not (torch.is_grad_enabled() and activations.requires_grad):
            return activations
        if self._newest is not None:
            before, entered = self._newest[0](), self._newest[1]()
            if before is activations and entered is not None:
                return entered
        made: Tensor = _Enter.apply(activations, self._add_up)  # type: ignore[no-untyped-call]
        self._newest = (weakref.ref(activations), weakref.ref(made))
        return made


class CutByOutputs(nn.Module):
    """Some outputs of a linear layer."""

    def __init__(self, linear: Any, first: int, last: int, entrance: Entrance) -> None:
        """Copies outputs `first` to `last`, the latter excluded."""
        super().__init__()
        self.weight = _copied(linear.weight, linear.weight.detach()[first:last])
        self.bias = None if linear.bias is None else _copied(linear.bias, linear.bias.detach()[first:last])
        self._entrance = entrance
        self.parts = {id(self.weight): Part(linear.weight, first)}
        if self.bias is not None:
            self.parts[id(self.bias)] = Part(linear.bias, first)

    def forward(self, activations: Tensor) -> Tensor:
        """(…, I) to this rank's share of (…, O)."""
        return functional.linear(self._entrance(activations), self.weight, self.bias)


class CutByInputs(nn.Module):
    """A linear layer of some of its inputs; the sum over ranks is the whole layer's output."""

    def __init__(self, linear: Any, first: int, last: int, add_up: AddUp) -> None:
        """Copies inputs `first` to `last`, the latter excluded. The bias is whole on every rank."""
        super().__init__()
        self.weight = _copied(linear.weight, linear.weight.detach()[:, first:last].T)
        self.bias = linear.bias
        self._add_up = add_up
        self.parts = {id(self.weight): Part(linear.weight, first, by_columns=True)}

    def forward(self, activations: Tensor) -> Tensor:
        """This rank's share of (…, I) to the whole (…, O)."""
        found: Tensor = _Leave.apply(activations @ self.weight, self._add_up)  # type: ignore[no-untyped-call]
        return found if self.bias is None else found + self.bias


class _Enter(torch.autograd.Function):
    """Nothing forward, a sum over ranks backward."""

    @staticmethod
    def forward(ctx: Any, activations: Tensor, add_up: AddUp) -> Tensor:
        ctx.add_up = add_up
        return activations.view_as(activations)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.add_up(gradient.clone(memory_format=torch.contiguous_format)), None


class _Leave(torch.autograd.Function):
    """A sum over ranks forward, nothing backward."""

    @staticmethod
    def forward(ctx: Any, activations: Tensor, add_up: AddUp) -> Tensor:
        del ctx
        return add_up(activations.clone(memory_format=torch.contiguous_format))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        del ctx
        return gradient, None


def check_tensor_plan(model: Any, ranks: int) -> None:
    """`ConfigError` unless the model's own plan says how that many ranks share its layers. One always does."""
    if ranks == 1:
        return
    config = model.config.get_text_config()
    kind = config.model_type
    plan = _plan(model)
    if not plan:
        raise _cannot(ranks, f"a {kind} model has no plan for it")
    for name, what in (("num_attention_heads", "attention heads"), ("num_key_value_heads", "key-value heads")):
        count = getattr(config, name, None)
        if count is None or count % ranks:
            raise _cannot(ranks, f"the model has {count} {what}, which {ranks} ranks cannot share evenly")
    found = 0
    for name, style, module in _planned(model.base_model, plan):
        if style not in (_BY_OUTPUTS, _BY_INPUTS, _SUMMED):
            raise _cannot(ranks, f"the plan of a {kind} model has {name} cut {style}")
        if style == _SUMMED:
            continue
        if type(module) is not nn.Linear:
            raise _cannot(ranks, f"{name} is no plain linear layer, as with adapters")
        if (module.out_features if style == _BY_OUTPUTS else module.in_features) % ranks:
            raise _cannot(ranks, f"the width of {name} is no multiple of {ranks}")
        found += 1
    if not found:
        raise _cannot(ranks, f"the plan of a {kind} model names none of its layers")


def cut_layers(base: Any, model: Any, *, ranks: int, index: int, add_up: AddUp) -> tuple[dict[int, Part], set[int]]:
    """Replace the planned linear layers below `base`, a copy of the model's, by rank `index`'s shares.

    Returns what the new parameters hold, and the parameters whose gradient every rank has a part of, by `id`.
    """
    parts: dict[int, Part] = {}
    summed: set[int] = set()
    entrances: dict[str, Entrance] = {}
    for name, style, module in list(_planned(base, _plan(model))):
        parent, _, own = name.rpartition(".")
        if style == _SUMMED:
            summed.update(id(each) for each in module.parameters())
            continue
        size = (module.out_features if style == _BY_OUTPUTS else module.in_features) // ranks
        edges = (index * size, (index + 1) * size)
        cut: CutByOutputs | CutByInputs
        if style == _BY_OUTPUTS:
            cut = CutByOutputs(module, *edges, entrances.setdefault(parent, Entrance(add_up)))
        else:
            cut = CutByInputs(module, *edges, add_up)
        setattr(base.get_submodule(parent), own, cut)
        parts |= cut.parts
    return parts, summed


def _plan(model: Any) -> dict[str, str]:
    """Styles by the names of modules in the base model's layers, with `*` for a layer's number.

    Embedding and head, which may be one matrix, are cut by words in any plan of ranks.
    """
    plan = getattr(model.config.get_text_config(), "base_model_tp_plan", None) or {}
    return {name: style for name, style in plan.items() if "*" in name}


def _planned(base: Any, plan: dict[str, str]) -> Iterator[tuple[str, str, Any]]:
    """Name, style and module of every layer that a plan names."""
    for name, module in base.named_modules():
        for pattern, style in plan.items():
            if fnmatchcase(name, pattern) and name.count(".") == pattern.count("."):
                yield name, style, module


def _copied(whole: nn.Parameter, share: Tensor) -> nn.Parameter:
    return nn.Parameter(share.clone(memory_format=torch.contiguous_format), requires_grad=whole.requires_grad)


def _cannot(ranks: int, reason: str) -> ConfigError:
    return ConfigError(
        f"tp{ranks} cannot be: {reason}", remedy="Leave tp out of the plan; dp deals the rows of any model."
    )
