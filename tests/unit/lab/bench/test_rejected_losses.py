"""Rejected losses: each weight against its formula, and equal to GEPO-T with the neutral option."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from p2prl.algorithms.batch import RolloutBatch
from p2prl.algorithms.loss_registry import build_loss
from p2prl.algorithms.objective import build_objective
from p2prl.errors import ConfigError
from p2prl_lab.bench.staleness.rejected_losses import REJECTED_LOSSES

REWARDS = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
CENTRED = REWARDS - REWARDS.mean(dim=-1, keepdim=True)


def logprobs(seed: int) -> Tensor:
    return -2.5 * torch.rand(3, 4, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 0.02


def batch(advantages: Tensor, *, behavior: Tensor | None = None) -> RolloutBatch:
    lengths = torch.tensor([[5, 3, 4, 1], [2, 5, 5, 3], [4, 4, 1, 5]])
    mask = torch.arange(5) < lengths.unsqueeze(-1)
    return RolloutBatch(
        behavior_logprobs_BGT=logprobs(1) if behavior is None else behavior, mask_BGT=mask, advantages_BG=advantages
    )


def gradient(name: str, options: dict[str, object], data: RolloutBatch, policy: Tensor) -> Tensor:
    objective = build_objective(REJECTED_LOSSES[name], options=options) if name in REJECTED_LOSSES else build_loss(name)
    leaf = policy.clone().requires_grad_()
    (found,) = torch.autograd.grad(objective.loss(leaf, data).loss, leaf)
    return found


@pytest.mark.parametrize(
    ("name", "at_rest"),
    [
        ("powered", {"power": 1.0}),
        ("anchored", {"pull": 0.0}),
        ("focused", {"focus": 0.0}),
        ("shrunk", {"borrowed": 0.0}),
    ],
)
def test_neutral_options_equal_gepo_t(name: str, at_rest: dict[str, object]) -> None:
    data = batch(REWARDS if name == "shrunk" else CENTRED)
    expected = gradient("gepo_t", {}, batch(CENTRED), logprobs(2))
    torch.testing.assert_close(gradient(name, at_rest, data, logprobs(2)), expected, rtol=1e-10, atol=1e-12)
    assert bool((expected != 0).any())


@pytest.mark.parametrize("name", ["discounted", "group_ess", "two_tapers"])
def test_on_policy_completions_are_not_discounted(name: str) -> None:
    policy = logprobs(1)
    expected = gradient("gepo_t", {}, batch(CENTRED), policy)
    torch.testing.assert_close(gradient(name, {}, batch(CENTRED), policy), expected, rtol=1e-10, atol=1e-12)


def oracle_weight(name: str, p: list[np.ndarray], q: list[np.ndarray], i: int, advantage: float) -> float:
    """A completion's weight in direct form, from the log-probs of its group on the mask."""
    likely = [math.exp(row.mean()) for row in q]
    expectation = sum(x * x for x in likely) / sum(likely)
    ratios = [math.exp((p[j] - q[j]).sum()) for j in range(len(p))]
    probability = math.exp(p[i].mean())
    weight = probability / expectation
    if name == "powered":
        weight = weight**-0.5
    if name == "discounted":
        weight *= math.exp(-abs((p[i] - q[i]).mean()) / 0.7)
    if name == "group_ess":
        weight *= math.sqrt(sum(ratios) ** 2 / sum(r * r for r in ratios) / len(ratios))
    if name == "focused" and advantage > 0:
        weight *= (1 - probability) ** 2
    weight = min(weight, 2.0)
    if name == "two_tapers" and advantage > 0:
        weight *= min(1.0, 1 / ratios[i])
    if name == "steep":
        return 0.5 * min(weight, 1.0, ratios[i] ** 3) if advantage < 0 else weight
    return 0.5 * min(weight, 1.0, ratios[i]) if advantage < 0 else weight


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("powered", {"power": -0.5}), ("discounted", {"reach": 0.7}), ("group_ess", {}), ("focused", {"focus": 2.0}),
        ("shrunk", {"borrowed": 3.0}), ("anchored", {"pull": 0.4}),
        ("steep", {"steepness": 3.0}), ("recentred", {}), ("two_tapers", {}),
    ],
)  # fmt: skip
def test_weights_equal_their_formulas(name: str, options: dict[str, object]) -> None:
    advantages = CENTRED
    if name == "shrunk":
        advantages = REWARDS - (4 * REWARDS.mean(dim=-1, keepdim=True) + 3.0 * REWARDS.mean()) / 7
    data, policy = batch(REWARDS if name == "shrunk" else CENTRED), logprobs(2)
    expected = torch.zeros_like(policy)
    for b in range(3):
        p = [policy[b, j][data.mask_BGT[b, j]].numpy() for j in range(4)]
        q = [data.behavior_logprobs_BGT[b, j][data.mask_BGT[b, j]].numpy() for j in range(4)]
        shares = [min(math.exp((p[j] - q[j]).sum()), 2.0) for j in range(4)]
        own = sum(shares[j] * float(CENTRED[b, j]) for j in range(4)) / sum(shares) if name == "recentred" else 0.0
        for i in range(4):
            advantage, tokens = float(advantages[b, i]) - own, len(p[i])
            slope = -oracle_weight(name, p, q, i, advantage) * advantage * np.ones(tokens)
            if name == "anchored":
                slope += 0.4 * (np.exp(p[i] - q[i]) - 1)
            expected[b, i][data.mask_BGT[b, i]] = torch.tensor(slope / (12 * tokens))
    found = gradient(name, {"negatives": 0.5, **options}, data, policy)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("powered", "power", 2.0), ("anchored", "pull", -1.0), ("discounted", "reach", 0.0),
        ("shrunk", "borrowed", -1.0), ("focused", "focus", 11.0), ("steep", "steepness", 0.5),
        ("group_ess", "negatives", 1.5),
    ],
)  # fmt: skip
def test_options_out_of_range_are_refused(name: str, field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=field):
        build_objective(REJECTED_LOSSES[name], options={field: value})
