"""Properties every loss keeps for any log-probs, masks and rewards."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from p2prl.algorithms.advantages import AdvantageConfig, compute_advantages
from p2prl.algorithms.batch import RolloutBatch
from p2prl.algorithms.guards import kl_brake, second_moment_keep, vcpo_factor
from p2prl.algorithms.loss_registry import BUILTIN_LOSSES, build_loss
from p2prl.algorithms.process_rewards import clip_steps, delta_steps
from p2prl.algorithms.ratios import effective_sample_size, group_log_expectation

LOGPROBS = st.one_of(st.floats(-5.0, 0.0), st.floats(-1e4, 0.0))
FEW = settings(max_examples=25, deadline=None)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, RolloutBatch]:
    groups, size, tokens = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    count = groups * size * tokens

    def tensor(values: st.SearchStrategy[float], shape: tuple[int, ...]) -> Tensor:
        numbers = draw(st.lists(values, min_size=count, max_size=count))
        return torch.tensor(numbers[: int(torch.Size(shape).numel())], dtype=torch.float64).reshape(shape)

    shape = (groups, size, tokens)
    mask = tensor(st.sampled_from([0.0, 1.0]), shape).bool()
    mask[..., 0] |= ~mask.any(dim=-1)
    rewards = tensor(st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1)), shape[:2])
    batch = RolloutBatch(
        behavior_logprobs_BGT=tensor(LOGPROBS, shape),
        mask_BGT=mask,
        advantages_BG=compute_advantages(rewards, AdvantageConfig()).advantages_BG,
        staleness_BG=tensor(st.integers(0, 500).map(float), shape[:2]),
    )
    return tensor(LOGPROBS, shape).requires_grad_(), batch


def loss_and_gradient(name: str, policy: Tensor, batch: RolloutBatch) -> tuple[Tensor, Tensor]:
    loss = build_loss(name, max_completion_tokens=8).loss(policy, batch).loss
    return loss.detach(), torch.autograd.grad(loss, policy)[0]


def named(name: str) -> Callable[[str], str]:
    """A message about a loss of this name."""
    return lambda message: f"{name}: {message}"


@FEW
@given(drawn=batches())
def test_loss_gradient_and_metrics_are_finite(drawn: tuple[Tensor, RolloutBatch]) -> None:
    """Of every loss on the same batch: to draw it takes longer."""
    policy, batch = drawn
    for name, dtype in itertools.product(sorted(BUILTIN_LOSSES), (torch.float64, torch.float32)):
        leaf = policy.detach().to(dtype).requires_grad_()
        output = build_loss(name, max_completion_tokens=8).loss(leaf, batch)
        (gradient,) = torch.autograd.grad(output.loss, leaf)
        assert torch.isfinite(output.loss), name
        assert torch.isfinite(gradient).all(), name
        assert all(torch.isfinite(value) for value in output.metrics.values()), name
        assert gradient[~batch.mask_BGT].count_nonzero() == 0, name
        assert not (output.bounded_BGT & ~batch.mask_BGT).any(), name


@settings(FEW, derandomize=True)
@given(drawn=batches(), seed=st.integers(0, 10**6))
def test_the_order_of_completions_and_groups_does_not_matter(drawn: tuple[Tensor, RolloutBatch], seed: int) -> None:
    """Clip-Cov and KL-Cov choose among tokens of equal covariance by their place."""
    policy, batch = drawn
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randperm(policy.shape[0], generator=generator)
    columns = torch.randperm(policy.shape[1], generator=generator)

    def shuffle(values: Tensor) -> Tensor:
        return values[rows][:, columns]

    assert batch.staleness_BG is not None
    other = dataclasses.replace(
        batch,
        behavior_logprobs_BGT=shuffle(batch.behavior_logprobs_BGT),
        mask_BGT=shuffle(batch.mask_BGT),
        advantages_BG=shuffle(batch.advantages_BG),
        staleness_BG=shuffle(batch.staleness_BG),
    )
    for name in sorted(set(BUILTIN_LOSSES) - {"clip_cov", "kl_cov"}):
        loss, gradient = loss_and_gradient(name, policy, batch)
        mixed_loss, mixed_gradient = loss_and_gradient(name, shuffle(policy.detach()).requires_grad_(), other)
        torch.testing.assert_close(mixed_loss, loss, rtol=1e-9, atol=1e-9, msg=named(name))
        torch.testing.assert_close(mixed_gradient, shuffle(gradient), rtol=1e-9, atol=1e-9, msg=named(name))


@pytest.mark.parametrize("name", ["gepo_t", "gex"])
@FEW
@given(drawn=batches(), cap=st.floats(0.1, 10), taper=st.sampled_from(["sequence", "geometric", "token"]))
def test_tapered_weights_stay_under_cap_and_negatives_under_one(
    name: str, drawn: tuple[Tensor, RolloutBatch], cap: float, taper: str
) -> None:
    policy, batch = drawn
    weights = build_loss(name, options={"cap": cap, "taper": taper}).loss(policy, batch).weights_BGT
    assert weights.max() <= cap * (1 + 1e-12)
    negatives = weights[batch.advantages_BG < 0]
    assert negatives.numel() == 0 or negatives.max() <= 1


@FEW
@given(st.lists(st.floats(-1e4, 0), min_size=1, max_size=64))
def test_log_expectation_lies_between_mean_and_max(logs: list[float]) -> None:
    means = torch.tensor([logs], dtype=torch.float64)
    got = group_log_expectation(means).item()
    log_mean = torch.logsumexp(means, dim=-1).item() - torch.tensor(float(len(logs))).double().log().item()
    assert log_mean - 1e-6 <= got <= max(logs) + 1e-6


@FEW
@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=64))
def test_effective_sample_size_and_its_factor_stay_in_range(logs: list[float]) -> None:
    values = torch.tensor(logs, dtype=torch.float64)
    assert 1 - 1e-6 <= effective_sample_size(values).item() <= len(logs) + 1e-6
    assert 0 < vcpo_factor(values).item() <= 1 + 1e-6


@FEW
@given(st.floats(-1e3, 1e6), st.floats(1e-6, 10))
def test_the_brake_never_accelerates(kl: float, target: float) -> None:
    factor = kl_brake(torch.tensor(kl, dtype=torch.float64), target_kl=target).item()
    assert 0 < factor <= 1
    assert (factor == 1) == (kl <= target)


@FEW
@given(st.lists(st.floats(-3, 3), min_size=1, max_size=20), st.floats(1e-3, 1))
def test_the_second_moment_mask_fits_the_budget_and_drops_the_largest(ratios: list[float], budget: float) -> None:
    log_ratios = torch.tensor(ratios, dtype=torch.float64).view(1, 1, -1)
    keep = second_moment_keep(log_ratios, torch.ones(1, 1, len(ratios)), budget=budget)
    squares = log_ratios.square()
    if keep.any():
        assert squares[keep].mean() <= budget
    if not keep.all():
        smallest_dropped = squares[~keep].min()
        assert not keep.any() or squares[keep].max() < smallest_dropped
        assert squares[squares <= smallest_dropped].mean() > budget


@FEW
@given(st.lists(st.lists(st.floats(-10, 10), min_size=1, max_size=6), min_size=1, max_size=4))
def test_delta_telescopes_from_every_step_and_clip_never_pays(steps: list[list[float]]) -> None:
    longest = max(len(row) for row in steps)
    scores = torch.tensor([row + [0.0] * (longest - len(row)) for row in steps], dtype=torch.float64).unsqueeze(0)
    mask = torch.tensor([[k < len(row) for k in range(longest)] for row in steps]).unsqueeze(0)
    delta = delta_steps(scores, mask)
    for i, row in enumerate(steps):
        for k in range(len(row)):
            expected = row[k] if k < len(row) - 1 else 0.0
            assert delta[0, i, k:].sum().item() == pytest.approx(expected, abs=1e-9)
    assert (clip_steps(scores, mask, threshold=0.3) <= 0).all()
