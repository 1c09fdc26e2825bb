"""Layers cut by a model's own plan: the sum over ranks is the layer, and what cannot be cut is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from p2prl.errors import ConfigError
from p2prl.models.weights.lora import add_lora, plan_lora
from p2prl.ranks.tensor_parallel import CutByInputs, CutByOutputs, Entrance, check_tensor_plan
from tests.unit.models.small_decoders import gpt2, llama, qwen2, qwen3


def adapted() -> Any:
    model = qwen2()
    add_lora(model, plan_lora(model, rank=2))
    return model


def odd_width() -> Any:
    model = qwen2()
    for layer in model.base_model.layers:
        layer.mlp.up_proj = nn.Linear(16, 41)
    return model


@pytest.mark.parametrize("make", [qwen2, qwen3])
def test_models_with_a_plan_can_be_cut(make: Callable[[], Any]) -> None:
    check_tensor_plan(make(), 1)
    check_tensor_plan(make(), 2)


@pytest.mark.parametrize(
    ("make", "ranks", "reason"),
    [
        (gpt2, 2, "a gpt2 model has no plan for it"),
        (qwen2, 3, "the model has 4 attention heads, which 3 ranks cannot share evenly"),
        (qwen2, 4, "the model has 2 key-value heads, which 4 ranks cannot share evenly"),
        (llama, 2, "the model has 1 key-value heads"),
        (adapted, 2, "q_proj is no plain linear layer, as with adapters"),
        (odd_width, 2, "the width of layers.0.mlp.up_proj is no multiple of 2"),
    ],
)
def test_what_cannot_be_cut_is_refused_by_name(make: Callable[[], Any], ranks: int, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"tp{ranks} cannot be: .*{reason}") as refused:
        check_tensor_plan(make(), ranks)
    assert "dp deals the rows of any model" in (refused.value.remedy or "")


@pytest.mark.parametrize("bias", [True, False])
def test_two_shares_of_two_layers_are_the_layers(bias: bool) -> None:
    """Without other ranks: each share's sum is of itself alone, and the shares are added up here."""
    torch.manual_seed(0)
    first, second = nn.Linear(6, 8, bias=bias), nn.Linear(8, 6, bias=bias)
    activations = torch.randn(3, 6, requires_grad=True)
    wanted = second(torch.relu(first(activations)))
    torch.autograd.backward(wanted.sum())
    assert activations.grad is not None
    gradient, activations.grad = activations.grad, None
    found = []
    for index in range(2):
        inner = CutByOutputs(first, 4 * index, 4 * index + 4, Entrance(lambda tensor: tensor))
        outer = CutByInputs(second, 4 * index, 4 * index + 4, lambda tensor: tensor)
        found.append(outer(torch.relu(inner(activations))))
        torch.autograd.backward(found[-1].sum())
        assert first.weight.grad is not None
        torch.testing.assert_close(inner.weight.grad, first.weight.grad[4 * index : 4 * index + 4])
        assert second.weight.grad is not None
        torch.testing.assert_close(outer.weight.grad, second.weight.grad[:, 4 * index : 4 * index + 4].T)
    both = found[0] + found[1] - (second.bias if bias else 0.0)
    torch.testing.assert_close(both, wanted)
    torch.testing.assert_close(activations.grad, gradient)


def test_layers_that_share_their_input_add_up_its_gradient_once() -> None:
    sums = 0

    def add_up(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal sums
        sums += 1
        return tensor

    entrance = Entrance(add_up)
    activations = torch.randn(2, 4, requires_grad=True)
    torch.autograd.backward((entrance(activations) + 2 * entrance(activations)).sum())
    assert sums == 1
    assert activations.grad is not None
    torch.testing.assert_close(activations.grad, torch.full((2, 4), 3.0))
    torch.autograd.backward(entrance(torch.ones(1, requires_grad=True)).sum())
    assert sums == 2
    with torch.no_grad():
        assert entrance(activations) is activations
