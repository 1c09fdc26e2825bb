"""Groups without a learning signal: which losses may skip them, and that skipping changes no gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from p2prl.algorithms.batch import RolloutBatch
from p2prl.algorithms.loss_registry import BUILTIN_LOSSES, build_loss
from p2prl_lab.bench.staleness.silent_groups import logprobs_of, pulls, silent_groups
from p2prl_lab.bench.training.decoder_shape import DecoderShape, initial_weights
from p2prl_lab.bench.training.stacked_decoder import completion_logprobs
from tests.unit.algorithms.rival_oracles import PULLS

SHAPE = DecoderShape(vocabulary=9, context=12, width=8, feedforward=16, layers=2, heads=2)


@pytest.mark.parametrize("name", sorted(set(BUILTIN_LOSSES) - {"dpo", "ppo"}))
def test_losses_that_pull_are_found(name: str) -> None:
    assert pulls(build_loss(name, max_completion_tokens=12)) == (name in PULLS)


@pytest.mark.parametrize("rewards", [[[1, 1], [0, 1], [0, 0], [1, 0]], [[1, 0]] * 4, [[1, 1]] * 4])
@pytest.mark.parametrize("name", ["topr", "grpo", "m2po_clip", "cispo", "gepo"])
def test_the_gradient_is_that_of_all_groups(name: str, rewards: list[list[float]]) -> None:
    """Two policies of which one has more groups with a signal than the other."""
    generator = torch.Generator().manual_seed(4)
    weights = torch.stack([initial_weights(SHAPE, seed) for seed in (1, 2)]).double().requires_grad_()
    prompts = torch.randint(9, (2, 4, 3), generator=generator)
    completions = torch.randint(9, (2, 4, 2, 5), generator=generator)
    objective, mask = build_loss(name, max_completion_tokens=12), torch.ones(4, 2, 5, dtype=torch.bool)
    all_rewards = torch.tensor([rewards, [[1, 1], [1, 1], [0, 1], [1, 1]]], dtype=torch.float64)
    advantages = torch.stack([objective.advantages(each, mask.sum(dim=-1)).advantages_BG for each in all_rewards])
    behavior = -torch.rand(4, 2, 5, generator=generator, dtype=torch.float64) - 0.5
    whole = completion_logprobs(SHAPE, weights, prompts, completions)
    partly = logprobs_of(SHAPE, weights, prompts, completions, silent_groups(advantages))
    torch.testing.assert_close(partly, whole, rtol=1e-12, atol=1e-12)

    def gradient(logprobs: Tensor) -> Tensor:
        batches = [
            RolloutBatch(behavior_logprobs_BGT=behavior, mask_BGT=mask, advantages_BG=each) for each in advantages
        ]
        losses = [objective.loss(own, batch).loss for own, batch in zip(logprobs, batches, strict=True)]
        return torch.autograd.grad(torch.stack(losses).sum(), weights)[0]

    torch.testing.assert_close(gradient(partly), gradient(whole), rtol=1e-9, atol=1e-12)


def test_a_gradient_always_remains() -> None:
    assert silent_groups(torch.tensor([[[0.0, 0.0], [0.5, -0.5]]])).tolist() == [[True, False]]
    weights = initial_weights(SHAPE, 1).unsqueeze(0).requires_grad_()
    tokens = torch.zeros(1, 3, 2, 5, dtype=torch.int64)
    silent = torch.ones(1, 3, dtype=torch.bool)
    assert logprobs_of(SHAPE, weights, tokens[:, :, 0], tokens, silent).requires_grad
