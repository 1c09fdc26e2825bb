"""Gain of a peer that under-reports its log-probs, per loss; and the bound that catches a lying group."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from p2prl.algorithms.batch import RolloutBatch
from p2prl.algorithms.guards import group_deflation_keep, spread, trust_caps
from p2prl.algorithms.loss_registry import build_loss

WIDE = {"gspo": {"clip_low": 1.0, "clip_high": 1e9}}
"""GSPO without its clip shows the weight itself."""


def honest_group() -> tuple[Tensor, RolloutBatch]:
    g = torch.Generator().manual_seed(8)
    means = -0.35 + 0.05 * torch.randn(1, 8, 1, generator=g, dtype=torch.float64)
    logprobs = means.expand(1, 8, 32).clone()
    batch = RolloutBatch(
        behavior_logprobs_BGT=logprobs,
        mask_BGT=torch.ones(1, 8, 32),
        advantages_BG=torch.tensor([[1.0, -1, 1, -1, 1, -1, 1, -1]], dtype=torch.float64),
    )
    return logprobs, batch


def gain(name: str, nats: float, members: slice) -> float:
    """Growth factor of the first member's weight when `members` deflate their log-probs by `nats` per token."""
    policy, batch = honest_group()
    lie = batch.behavior_logprobs_BGT.clone()
    lie[:, members] -= nats
    objective = build_loss(name, options=WIDE.get(name, {}))
    before = objective.loss(policy, batch).weights_BGT[0, 0, 0]
    after = objective.loss(policy, dataclasses.replace(batch, behavior_logprobs_BGT=lie)).weights_BGT[0, 0, 0]
    return float(after / before)


@pytest.mark.parametrize(("nats", "gspo_gain"), [(1.0, 2.7), (2.0, 7.4), (4.0, 55.0)])
def test_one_liar_multiplies_its_gspo_weight_and_not_its_gepo_weight(nats: float, gspo_gain: float) -> None:
    assert gain("gspo", nats, slice(0, 1)) == pytest.approx(math.exp(nats))
    assert gain("gspo", nats, slice(0, 1)) == pytest.approx(gspo_gain, rel=0.02)
    for name in ("gepo", "gepo_t"):
        assert gain(name, nats, slice(0, 1)) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("nats", [1.0, 2.0, 4.0])
def test_a_lying_group_multiplies_every_gepo_weight_up_to_the_clamp(nats: float) -> None:
    assert gain("gepo", nats, slice(None)) == pytest.approx(math.exp(nats))


@pytest.mark.parametrize("nats", [1.0, 2.0, 4.0])
def test_a_lying_group_gains_at_most_the_cap_from_the_tapered_losses(nats: float) -> None:
    policy, batch = honest_group()
    lie = dataclasses.replace(batch, behavior_logprobs_BGT=batch.behavior_logprobs_BGT - nats)
    for name in ("gepo_t", "gex"):
        weights = build_loss(name).loss(policy, lie).weights_BGT
        assert weights.max() <= 2 + 1e-9
        assert weights[0, 1::2].max() <= 1 + 1e-9


@pytest.mark.parametrize("nats", [1.0, 2.0, 4.0])
def test_the_deflation_bound_drops_only_a_lying_group(nats: float) -> None:
    policy, batch = honest_group()
    both = RolloutBatch(
        behavior_logprobs_BGT=torch.cat([batch.behavior_logprobs_BGT, batch.behavior_logprobs_BGT - nats]),
        mask_BGT=torch.ones(2, 8, 32),
        advantages_BG=batch.advantages_BG.repeat(2, 1),
    )
    policies = policy.repeat(2, 1, 1).requires_grad_()
    keep = group_deflation_keep(policies, both)
    assert keep.tolist() == [True, False]
    guarded = dataclasses.replace(both, guard_BGT=spread(keep, both.mask_BGT))
    (gradient,) = torch.autograd.grad(build_loss("gepo").loss(policies, guarded).loss, policies)
    assert gradient[0].abs().sum() > 0
    assert gradient[1].count_nonzero() == 0


def test_trust_caps_limit_an_unverified_peer_to_one() -> None:
    policy, batch = honest_group()
    lie = dataclasses.replace(
        batch,
        behavior_logprobs_BGT=batch.behavior_logprobs_BGT - 4,
        weight_cap_BG=trust_caps(torch.zeros(1, 8)),
    )
    assert build_loss("gepo").loss(policy, lie).weights_BGT.max() == pytest.approx(1.0)
