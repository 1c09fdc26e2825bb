"""Ratios in the log domain against their direct form, and the bounds theory gives."""

from __future__ import annotations

import math

import pytest
import torch

from p2prl.algorithms.batch import RolloutBatch
from p2prl.algorithms.ratios import (
    bounded_exp,
    effective_sample_size,
    group_log_expectation,
    masked_mean,
    mean_k3,
    terms_of,
)


def test_log_expectation_equals_its_direct_form_and_lies_between_mean_and_max() -> None:
    logs = -torch.rand(50, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
    for row, got in zip(logs.tolist(), group_log_expectation(logs).exp().tolist(), strict=True):
        q = [math.exp(x) for x in row]
        assert got == pytest.approx(sum(x * x for x in q) / sum(q), rel=1e-12)
        assert sum(q) / 8 <= got <= max(q)


def test_log_expectation_of_one_or_of_equals_is_the_member_itself() -> None:
    assert group_log_expectation(torch.tensor([[-1.25]], dtype=torch.float64)).item() == pytest.approx(-1.25)
    assert group_log_expectation(torch.full((1, 5), -0.5, dtype=torch.float64)).item() == pytest.approx(-0.5)


def test_log_expectation_survives_probabilities_that_underflow() -> None:
    assert group_log_expectation(torch.tensor([[-2000.0, -3000.0]])).item() == pytest.approx(-2000.0)


def test_effective_sample_size_at_its_ends_and_in_between() -> None:
    assert effective_sample_size(torch.zeros(7)).item() == pytest.approx(7)
    assert effective_sample_size(torch.tensor([1e9, 0.0, -1e9])).item() == pytest.approx(1)
    weights = [0.2, 1.0, 3.5]
    direct = sum(weights) ** 2 / sum(w * w for w in weights)
    assert effective_sample_size(torch.tensor(weights).log()).item() == pytest.approx(direct)


def test_terms_equal_loops_over_the_mask() -> None:
    policy = torch.tensor([[[-1.0, -2.0, -9.0]]], dtype=torch.float64)
    batch = RolloutBatch(
        behavior_logprobs_BGT=torch.tensor([[[-1.5, -0.5, -7.0]]], dtype=torch.float64),
        mask_BGT=torch.tensor([[[1, 1, 0]]]),
        advantages_BG=torch.tensor([[1.0]]),
    )
    terms = terms_of(policy, batch)
    assert terms.log_ratio_BGT.tolist() == [[[0.5, -1.5, 0.0]]]
    assert terms.sequence_BG.item() == -1.0
    assert terms.geometric_BG.item() == -0.5
    assert terms.policy_mean_BG.item() == -1.5
    assert terms.behavior_mean_BG.item() == -1.0
    assert terms.lengths_BG.item() == 2


def test_gradient_reaches_the_policy_side_only() -> None:
    policy = torch.full((1, 2, 3), -1.0, requires_grad=True)
    behavior = torch.full((1, 2, 3), -1.0, requires_grad=True)
    batch = RolloutBatch(behavior_logprobs_BGT=behavior, mask_BGT=torch.ones(1, 2, 3), advantages_BG=torch.ones(1, 2))
    total = terms_of(policy, batch).sequence_BG.sum()
    through_policy, through_behavior = torch.autograd.grad(total, (policy, behavior), allow_unused=True)
    assert (through_policy == 1).all()
    assert through_behavior is None


def test_bounded_exp_is_exp_inside_and_flat_outside() -> None:
    x = torch.tensor([-1e4, -3.0, 0.0, 3.0, 1e4], dtype=torch.float64, requires_grad=True)
    y = bounded_exp(x)
    assert y.tolist() == pytest.approx([math.exp(v) for v in (-20, -3, 0, 3, 20)])
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert slope.tolist() == pytest.approx([0, math.exp(-3), 1, math.exp(3), 0])


def test_k3_is_non_negative_clamped_and_zero_on_policy() -> None:
    ones = torch.ones(1, 1, 2, dtype=torch.bool)
    assert mean_k3(torch.zeros(1, 1, 2), ones).item() == 0
    assert mean_k3(torch.tensor([[[1.0, -2.0]]]), ones).item() == pytest.approx(((math.e - 2) + (math.exp(-2) + 1)) / 2)
    assert mean_k3(torch.tensor([[[1e4, 1e4]]]), ones).item() == pytest.approx(math.exp(10) - 11)


def test_masked_mean_reads_the_mask_only() -> None:
    values = torch.tensor([[[1.0, float("nan"), 3.0]]])
    assert masked_mean(values, torch.tensor([[[True, False, True]]])).item() == 2.0
