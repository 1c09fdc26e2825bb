"""Gradients added in place are those that autograd adds, over several backward passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from p2prl.models.logprobs import large_gradients
from p2prl.models.logprobs.large_gradients import look_up, place_for, use_in
from p2prl.models.logprobs.policy_forward import PolicyForward
from p2prl.models.logprobs.scoring_model import ScoringModel
from tests.unit.models.small_decoders import qwen2

ROWS = [((1, 2, 3), (4, 5, 6, 1)), ((2, 2), (3, 3, 3))]


def gradients(model: Any) -> dict[str, Tensor]:
    """Of two micro-batches."""
    forward = PolicyForward(ScoringModel(model, temperature=0.7))
    for sign in (1.0, -0.5):
        scored = forward.score(ROWS, graph=True)
        forward.backward(scored, sign * torch.linspace(-1, 1, len(scored.tokens_M)))
    return {name: each.grad for name, each in model.named_parameters()}


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_has_the_same_gradient(tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = gradients(qwen2(tied=tied))
    monkeypatch.setattr(large_gradients, "LARGE", 1)
    found = gradients(qwen2(tied=tied))
    assert found.keys() == wanted.keys()
    for name, each in wanted.items():
        assert each.abs().max() > 0, name
        torch.testing.assert_close(found[name], each, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("padding", [None, 3])
def test_an_embedding_drops_the_gradient_of_its_padding(padding: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_gradients, "LARGE", 1)
    plain = nn.Embedding(5, 2, padding_idx=padding)
    other = nn.Embedding(5, 2, padding_idx=padding)
    other.weight.data.copy_(plain.weight.data)
    use_in(other)
    ids = torch.tensor([[1, 3, 3], [0, 1, 4]])
    for embedding in (plain, other):
        for _ in range(2):
            (embedding(ids) * torch.arange(12.0).reshape(2, 3, 2)).sum().backward()
    torch.testing.assert_close(other.weight.grad, plain.weight.grad)
    torch.testing.assert_close(other(ids), plain(ids))


def test_only_what_is_large_and_trained_has_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_gradients, "LARGE", 8)
    assert place_for(nn.Parameter(torch.zeros(7))) is None
    assert place_for(nn.Parameter(torch.zeros(8), requires_grad=False)) is None
    assert place_for(nn.Parameter(torch.zeros(8, dtype=torch.bfloat16))) is None
    weight = nn.Parameter(torch.zeros(8))
    place = place_for(weight)
    assert place is not None
    place += 1
    assert place_for(weight) is weight.grad
    assert weight.grad is not None
    assert weight.grad.tolist() == [1.0] * 8


def test_sixteen_bits_are_added_by_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_gradients, "LARGE", 1)
    weight = nn.Parameter(torch.ones(4, 2, dtype=torch.bfloat16))
    torch.autograd.backward(look_up(weight, torch.tensor([1, 1, 2])).sum())
    assert weight.grad is not None
    assert weight.grad.dtype == torch.bfloat16
    assert weight.grad[:, 0].tolist() == [0.0, 2.0, 1.0, 0.0]
