"""Value loss, advantage estimation and the reference penalty against loops."""

from __future__ import annotations

import math

import pytest
import torch

from p2prl.algorithms.aggregation import AggregationConfig
from p2prl.algorithms.batch import RolloutBatch
from p2prl.algorithms.kl_penalty import ReferencePenaltyConfig, reference_penalty
from p2prl.algorithms.ppo import ValueConfig, gae, value_loss
from p2prl.errors import ConfigError, LocalProtocolError

TOKEN_MEAN = AggregationConfig(kind="token_mean")
G = torch.Generator().manual_seed(4)
MASK = torch.tensor([[[1, 1, 0, 1, 1], [1, 0, 0, 0, 0]]], dtype=torch.bool)
REWARDS, VALUES, OLD = (torch.randn(1, 2, 5, generator=G, dtype=torch.float64) for _ in range(3))


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.5), (1.0, 1.0), (0.7, 0.0)])
def test_gae_equals_its_double_sum_over_tokens_on_the_mask(gamma: float, lam: float) -> None:
    advantages, returns = gae(REWARDS, VALUES, MASK, ValueConfig(gamma=gamma, gae_lambda=lam))
    for i in range(2):
        on = [t for t in range(5) if MASK[0, i, t]]
        r, v = [float(REWARDS[0, i, t]) for t in on], [float(VALUES[0, i, t]) for t in on] + [0.0]
        deltas = [r[k] + gamma * v[k + 1] - v[k] for k in range(len(on))]
        for k, t in enumerate(on):
            expected = sum((gamma * lam) ** (j - k) * deltas[j] for j in range(k, len(on)))
            assert advantages[0, i, t].item() == pytest.approx(expected)
            assert returns[0, i, t].item() == pytest.approx(expected + v[k])
    assert advantages[~MASK].count_nonzero() == 0


def test_gae_with_lambda_one_and_no_discount_is_reward_to_go_minus_value() -> None:
    _, returns = gae(REWARDS, VALUES, MASK, ValueConfig(gamma=1.0, gae_lambda=1.0))
    to_go = torch.where(MASK, REWARDS, torch.zeros(())).flip(-1).cumsum(-1).flip(-1)
    torch.testing.assert_close(returns[MASK], to_go[MASK])


@pytest.mark.parametrize("clip", [None, 0.2, 5.0])
def test_the_value_loss_takes_the_worse_of_clipped_and_free(clip: float | None) -> None:
    values = VALUES.clone().requires_grad_()
    loss = value_loss(values, OLD, REWARDS, MASK, ValueConfig(value_clip=clip), TOKEN_MEAN)
    total = 0.0
    for i, t in [(i, t) for i in range(2) for t in range(5) if MASK[0, i, t]]:
        v, o, r = (float(x[0, i, t]) for x in (VALUES, OLD, REWARDS))
        near = v if clip is None else o + min(max(v - o, -clip), clip)
        total += 0.5 * max((v - r) ** 2, (near - r) ** 2)
    assert loss.item() == pytest.approx(total / 5)
    assert torch.autograd.gradcheck(
        lambda x: value_loss(x, OLD, REWARDS, MASK, ValueConfig(value_clip=clip), TOKEN_MEAN), (values,)
    )


def test_illegal_value_inputs_are_refused() -> None:
    cfg = ValueConfig()
    with pytest.raises(LocalProtocolError, match="returns_BGT"):
        value_loss(VALUES, OLD, REWARDS[..., :4], MASK, cfg, TOKEN_MEAN)
    with pytest.raises(LocalProtocolError, match="values_BGT"):
        gae(REWARDS, VALUES * float("nan"), MASK, cfg)
    for field, value in (("gamma", 1.1), ("gae_lambda", -0.1), ("value_clip", 0.0)):
        with pytest.raises(ConfigError, match=field):
            ValueConfig(**{field: value})


def penalty(beta: float) -> tuple[torch.Tensor, torch.Tensor]:
    policy = torch.tensor([[[-1.0, -0.5]]], dtype=torch.float64, requires_grad=True)
    batch = RolloutBatch(
        behavior_logprobs_BGT=policy.detach(),
        mask_BGT=torch.ones(1, 1, 2),
        advantages_BG=torch.zeros(1, 1),
        reference_logprobs_BGT=torch.tensor([[[-0.7, -0.9]]], dtype=torch.float64),
    )
    loss = reference_penalty(policy, batch, ReferencePenaltyConfig(beta=beta), TOKEN_MEAN)
    return loss, torch.autograd.grad(loss, policy)[0]


def test_the_reference_penalty_is_k3_and_pulls_back() -> None:
    loss, gradient = penalty(0.5)
    expected = [math.exp(x) - x - 1 for x in (0.3, -0.4)]
    assert loss.item() == pytest.approx(0.5 * sum(expected) / 2)
    assert gradient[0, 0].tolist() == pytest.approx([0.25 * (1 - math.exp(x)) for x in (0.3, -0.4)])
    assert penalty(0.0)[0].item() == 0


def test_the_reference_penalty_needs_a_reference() -> None:
    batch = RolloutBatch(
        behavior_logprobs_BGT=-torch.ones(1, 1, 2), mask_BGT=torch.ones(1, 1, 2), advantages_BG=torch.zeros(1, 1)
    )
    with pytest.raises(LocalProtocolError, match="reference_logprobs_BGT"):
        reference_penalty(-torch.ones(1, 1, 2), batch, ReferencePenaltyConfig(), TOKEN_MEAN)
