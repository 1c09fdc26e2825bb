"""Output head: tiles give the log-probs and gradients of a whole log-softmax."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from p2prl.models.logprobs.linear_head import find_linear_head
from p2prl.models.logprobs.training_head import TrainingHead
from tests.unit.models.small_decoders import gemma2, gpt2, qwen2

POSITIONS, HIDDEN, VOCABULARY = 530, 8, 4201
"""More than one tile both ways, and no multiple of one."""


def case(*, bias: bool, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    tokens = torch.randint(0, VOCABULARY, (POSITIONS,), generator=generator)
    tokens[:4] = torch.tensor([0, 4095, 4096, VOCABULARY - 1])  # both sides of the border between tiles
    weight = draw(VOCABULARY, HIDDEN).to(dtype).requires_grad_()
    bias_V = draw(VOCABULARY).to(dtype).requires_grad_() if bias else None
    return draw(POSITIONS, HIDDEN).to(dtype), weight, bias_V, tokens, draw(POSITIONS)


def oracle(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor, temperature: float, coefficients: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Log-probs and gradients (hidden, weight, bias) in float64."""
    leaves = [t.detach().double().requires_grad_() for t in (hidden, weight, *(() if bias is None else (bias,)))]
    logits = leaves[0] @ leaves[1].T + (0.0 if bias is None else leaves[2])
    logprobs = torch.log_softmax(logits / temperature, dim=-1).gather(1, tokens[:, None])[:, 0]
    (logprobs * coefficients.double()).sum().backward()  # type: ignore[no-untyped-call]
    return logprobs.detach(), [leaf.grad for leaf in leaves if leaf.grad is not None]


def pushed(head: TrainingHead, hidden: Tensor, tokens: Tensor, coefficients: Tensor) -> Tensor:
    """Add the gradient of Σ coefficient · log-prob to the head's parameters; returns that of the hidden states."""
    leaf = hidden.detach().requires_grad_()
    torch.autograd.backward(head.attach(leaf, tokens, *head.logprobs(hidden, tokens)), coefficients)
    assert leaf.grad is not None
    return leaf.grad


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_and_gradients_are_those_of_a_whole_softmax(bias: bool, temperature: float) -> None:
    hidden, weight, bias_V, tokens, coefficients = case(bias=bias)
    expected, (d_hidden, d_weight, *d_bias) = oracle(hidden, weight, bias_V, tokens, temperature, coefficients)
    head = TrainingHead(weight, bias_V, temperature, torch.float32)
    logprobs, _ = head.logprobs(hidden, tokens)
    torch.testing.assert_close(logprobs.double(), expected, rtol=1e-5, atol=1e-5)
    weight.grad = torch.ones_like(weight)  # as left by an earlier micro-batch: gradients add up
    found = pushed(head, hidden, tokens, coefficients)
    torch.testing.assert_close(found.double(), d_hidden, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(weight.grad.double() - 1, d_weight, rtol=1e-4, atol=1e-5)
    for gradient in d_bias:
        assert bias_V is not None
        assert bias_V.grad is not None
        torch.testing.assert_close(bias_V.grad.double(), gradient, rtol=1e-4, atol=1e-5)


def test_a_frozen_head_gets_no_gradient() -> None:
    hidden, weight, bias, tokens, coefficients = case(bias=True)
    assert bias is not None
    head = TrainingHead(weight.requires_grad_(False), bias.requires_grad_(False), 1.0, torch.float32)
    gradient = pushed(head, hidden, tokens, coefficients)
    assert (weight.grad, bias.grad) == (None, None)
    expected = oracle(hidden, weight, bias, tokens, 1.0, coefficients)[1][0]
    torch.testing.assert_close(gradient.double(), expected, rtol=1e-4, atol=1e-5)


def test_hooks_of_the_weight_see_the_gradient() -> None:
    hidden, weight, _, tokens, coefficients = case(bias=False)
    seen: list[Tensor] = []
    weight.register_hook(seen.append)  # type: ignore[no-untyped-call]
    pushed(TrainingHead(weight, None, 1.0, torch.float32), hidden, tokens, coefficients)
    (gradient,) = seen
    expected = oracle(hidden, weight, None, tokens, 1.0, coefficients)[1][1]
    torch.testing.assert_close(gradient.double(), expected, rtol=1e-4, atol=1e-5)


def test_a_weight_changed_before_the_backward_pass_is_noticed() -> None:
    hidden, weight, _, tokens, coefficients = case(bias=False)
    head = TrainingHead(weight, None, 1.0, torch.float32)
    attached = head.attach(hidden, tokens, *head.logprobs(hidden, tokens))
    with torch.no_grad():
        weight.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.backward(attached, coefficients)


@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16])
def test_products_in_bfloat16_stay_near(weight_dtype: torch.dtype) -> None:
    hidden, weight, _, tokens, coefficients = case(bias=False, dtype=weight_dtype)
    head = TrainingHead(weight, None, 1.0, torch.bfloat16)
    logprobs, _ = head.logprobs(hidden, tokens)
    assert float(logprobs.max()) < 0.0
    expected, (d_hidden, d_weight) = oracle(hidden, weight, None, tokens, 1.0, coefficients)
    assert float((logprobs.double() - expected).abs().max()) < 0.1
    found = pushed(head, hidden, tokens, coefficients)
    assert weight.grad is not None
    for near, exact in ((found, d_hidden), (weight.grad, d_weight)):
        assert float((near.double() - exact).norm() / exact.norm()) < 0.02


@pytest.mark.parametrize("make", [qwen2, gpt2, lambda: qwen2(tied=False)])
def test_a_linear_head_is_found(make: Any) -> None:
    model = make()
    assert find_linear_head(model) is model.lm_head


class ScaledHidden(nn.Module):
    """A base model whose last hidden states are scaled before the head sees them."""

    def __init__(self, model: Any, *, before: float, after: float) -> None:
        super().__init__()
        self.base_model = model.base_model
        self.head = model.lm_head
        self.before, self.after = before, after

    def get_output_embeddings(self) -> nn.Module:
        return self.head  # type: ignore[no-any-return]

    def forward(self, input_ids: Tensor, use_cache: bool) -> Any:
        output = self.base_model(input_ids=input_ids, use_cache=use_cache)
        output.logits = self.head(output.last_hidden_state * self.before) * self.after
        return output


@pytest.mark.parametrize(("before", "after"), [(0.5, 1.0), (1.0, 0.999)])
def test_scaled_hidden_states_and_logits_are_noticed(before: float, after: float) -> None:
    assert find_linear_head(ScaledHidden(qwen2(), before=1.0, after=1.0)) is not None
    assert find_linear_head(ScaledHidden(qwen2(), before=before, after=after)) is None


def test_a_soft_cap_is_noticed_although_small_logits_pass_it_unchanged() -> None:
    model = gemma2()
    with torch.no_grad():
        model.lm_head.weight.mul_(1e-4)
    assert find_linear_head(model) is None
