"""Policy forward: packing and checkpointing change no result."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from p2prl.models.logprobs.policy_forward import PolicyForward
from p2prl.models.logprobs.policy_logprobs import completion_logprobs
from p2prl.models.logprobs.scoring_model import ScoringModel
from tests.unit.models.small_decoders import difference, gemma2, gpt2, gradients, qwen2, rows_of

ROWS = rows_of(6)


def scored(model: Any, **options: Any) -> tuple[Tensor, list[Tensor]]:
    """Log-probs of ROWS, and the gradient of their sum weighted by 1, 2, 3 and so on."""
    checkpointing, packs = options.pop("checkpointing", False), options.pop("packs", None)
    forward = PolicyForward(ScoringModel(model, temperature=0.7, **options), packs=packs)
    model.zero_grad()
    result = forward.score(ROWS, graph=True, checkpointing=checkpointing)
    forward.backward(result, torch.arange(1.0, len(result.logprobs_M) + 1))
    return result.logprobs_M, gradients(model)


def oracle(model: Any) -> tuple[Tensor, list[Tensor]]:
    model.zero_grad()
    logprobs, mask = completion_logprobs(model, [row[0] for row in ROWS], [row[1] for row in ROWS], 0.7)
    flat = logprobs[mask.bool()]
    (flat * torch.arange(1.0, len(flat) + 1)).sum().backward()  # type: ignore[no-untyped-call]
    return flat.detach(), gradients(model)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        *((make, options) for make in (qwen2, gpt2, gemma2) for options in ({}, {"checkpointing": True})),
        (qwen2, {"packs": True}),  # its mask reads positions, as attention without padding does
    ],
)
def test_scores_and_gradients_are_those_of_a_padded_batch(make: Any, options: dict[str, Any]) -> None:
    model = make()
    expected, gradient = oracle(model)
    logprobs, found = scored(model, **options)
    torch.testing.assert_close(logprobs, expected, rtol=1e-5, atol=1e-5)
    assert difference(found, gradient) < 1e-5


def test_a_graph_built_again_gives_the_same_gradient() -> None:
    model = qwen2()
    forward = PolicyForward(ScoringModel(model, temperature=0.7))
    first = forward.score(ROWS, graph=True)
    forward.backward(first, torch.ones_like(first.logprobs_M))
    expected = gradients(model)
    model.zero_grad()
    forward.backward(
        forward.score(ROWS, graph=True, normalizers_M=first.normalizers_M), torch.ones_like(first.logprobs_M)
    )
    for one, other in zip(gradients(model), expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("tied", [True, False])
def test_weights_may_be_there_in_the_forward_pass_alone(tied: bool) -> None:
    """As weights are that a hook gathers: before and after the pass the module holds something else."""
    model = qwen2(tied=tied)
    expected, gradient = oracle(model)
    head = model.lm_head
    gathered, elsewhere = head.weight, torch.nn.Parameter(torch.full((1,), torch.nan))
    scoring = ScoringModel(model, temperature=0.7)
    forward = PolicyForward(scoring)

    def hold(weight: torch.nn.Parameter) -> None:
        head.weight = weight
        if tied:
            model.model.embed_tokens.weight = weight

    scoring.register_forward_pre_hook(lambda *_: hold(gathered))
    scoring.register_forward_hook(lambda *_: hold(elsewhere))
    hold(elsewhere)
    model.zero_grad()
    gathered.grad = None
    result = forward.score(ROWS, graph=True)
    torch.testing.assert_close(result.logprobs_M, expected, rtol=1e-5, atol=1e-5)
    forward.backward(result, torch.arange(1.0, len(result.logprobs_M) + 1))
    hold(gathered)
    assert difference(gradients(model), gradient) < 1e-5


def test_checkpointing_turns_on_no_dropout() -> None:
    model = gpt2(dropout=0.5)
    plain, checkpointed = scored(model), scored(model, checkpointing=True)
    assert torch.equal(plain[0], checkpointed[0])
    assert all(torch.equal(a, b) for a, b in zip(plain[1], checkpointed[1], strict=True))
    assert not any(layer.training for layer in model.modules())


def weighed(sizes: list[int], tensor: Tensor) -> Tensor:
    """The tensor, after noting its size."""
    sizes.append(tensor.numel())
    return tensor


def test_checkpointing_keeps_fewer_tensors() -> None:
    model = qwen2()
    kept = []
    for checkpointing in (False, True):
        sizes: list[int] = []
        forward = PolicyForward(ScoringModel(model, temperature=1.0))
        with torch.autograd.graph.saved_tensors_hooks(partial(weighed, sizes), lambda tensor: tensor):
            forward.score(ROWS, graph=True, checkpointing=checkpointing)
        kept.append(sum(sizes))
    assert kept[1] < kept[0] / 3


def test_autocast_computes_near_the_float32_model() -> None:
    model = qwen2()
    exact, near = scored(model), scored(model, autocast=torch.bfloat16)
    assert 0.0 < float((exact[0] - near[0]).abs().max()) < 0.1
    assert all(gradient.dtype == torch.float32 for gradient in near[1])
    assert difference(near[1], exact[1]) < 0.1
