"""Losses, advantage estimation, value loss and penalty against float64 loops, on batches of any shape."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from numpy.typing import NDArray

from p2prl.algorithms.aggregation import AggregationConfig, AggregationKind
from p2prl.algorithms.kl_penalty import ReferencePenaltyConfig, reference_penalty
from p2prl.algorithms.ppo import ValueConfig, gae, value_loss
from tests.unit.algorithms.loss_oracles import MAX_TOKENS, ORACLES, coefficients, dpo_oracle, make_case, run

Array = NDArray[np.float64]
FEW = settings(max_examples=10, deadline=None)
KINDS = st.sampled_from(["seq_mean", "token_mean", "fixed_length", "delta_l"])
SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(1, 12))
SEEDS = st.integers(0, 2**32 - 1)
NUDGE = 1e-6


@pytest.mark.parametrize("name", sorted(ORACLES))
@FEW
@given(seed=SEEDS, spread=st.floats(0, 1), shape=SHAPES, kind=KINDS)
def test_value_and_gradient_equal_the_oracle_at_any_shape(
    name: str, seed: int, spread: float, shape: tuple[int, int, int], kind: AggregationKind
) -> None:
    case = make_case(seed, spread, shape)
    c = coefficients(case.mask, kind)
    values, expected = ORACLES[name](case, c)
    output, gradient = run(name, case, kind)
    np.testing.assert_allclose(output.loss.item(), (c[..., None] * values).sum(), rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(gradient, expected, rtol=1e-8, atol=1e-9)


@FEW
@given(seed=SEEDS, spread=st.floats(0, 1), shape=SHAPES)
def test_dpo_equals_the_oracle_at_any_shape(seed: int, spread: float, shape: tuple[int, int, int]) -> None:
    case = make_case(seed, spread, shape)
    output, gradient = run("dpo", case, "seq_mean")
    loss, expected = dpo_oracle(case)
    if shape[1] == 1:  # nobody to be compared with: the oracle pairs a completion with itself, at log 2 and no slope
        loss, expected = 0.0, np.zeros_like(expected)
    np.testing.assert_allclose(output.loss.item(), loss, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(gradient, expected, rtol=1e-8, atol=1e-9)


def ragged(seed: int, shape: tuple[int, int, int]) -> tuple[NDArray[np.bool_], list[Array]]:
    """A mask with holes, and four arrays that hold nonsense off it."""
    rng = np.random.default_rng(seed)
    mask = rng.random(shape) < 0.6
    mask[..., -1] |= ~mask.any(-1)
    return mask, [np.where(mask, rng.normal(size=shape), np.nan) for _ in range(4)]


@settings(FEW, max_examples=40)
@given(seed=SEEDS, shape=SHAPES, gamma=st.floats(0, 1), lam=st.floats(0, 1))
def test_gae_is_the_weighted_mean_of_its_many_step_returns(
    seed: int, shape: tuple[int, int, int], gamma: float, lam: float
) -> None:
    """arXiv 1506.02438 eq. 16: (1−λ) Σ_n λ^(n−1) A^(n), where the last many-step advantage stands for all longer."""
    mask, (rewards, values, _, _) = ragged(seed, shape)
    got, returns = gae(
        torch.tensor(rewards), torch.tensor(values), torch.tensor(mask), ValueConfig(gamma=gamma, gae_lambda=lam)
    )
    expected = np.zeros(shape)
    for b, i in np.ndindex(*shape[:2]):
        places = np.flatnonzero(mask[b, i])
        r, v = rewards[b, i][places], [*values[b, i][places], 0.0]
        for k, place in enumerate(places):
            left = len(places) - k
            for n in range(1, left + 1):
                step = sum(gamma**j * r[k + j] for j in range(n)) + gamma**n * v[k + n] - v[k]
                expected[b, i, place] += (lam ** (n - 1) if n == left else (1 - lam) * lam ** (n - 1)) * step
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(returns.numpy()[mask], (expected + values)[mask], rtol=1e-8, atol=1e-8)


@settings(FEW, max_examples=30)
@given(seed=SEEDS, shape=SHAPES, clip=st.one_of(st.none(), st.floats(0.05, 2)), kind=KINDS)
def test_the_value_loss_and_its_slope_equal_the_oracle(
    seed: int, shape: tuple[int, int, int], clip: float | None, kind: AggregationKind
) -> None:
    mask, (values, old, target, _) = ragged(seed, shape)
    c = coefficients(mask, kind)

    def oracle(v: Array) -> float:
        total = 0.0
        for b, i, t in np.argwhere(mask):
            near = v[b, i, t] if clip is None else old[b, i, t] + min(max(v[b, i, t] - old[b, i, t], -clip), clip)
            total += c[b, i] * 0.5 * max((v[b, i, t] - target[b, i, t]) ** 2, (near - target[b, i, t]) ** 2)
        return total

    leaf = torch.tensor(values, requires_grad=True)
    aggregation = AggregationConfig(kind=kind, max_completion_tokens=MAX_TOKENS)
    loss = value_loss(
        leaf, torch.tensor(old), torch.tensor(target), torch.tensor(mask), ValueConfig(value_clip=clip), aggregation
    )
    (gradient,) = torch.autograd.grad(loss, leaf)
    np.testing.assert_allclose(loss.item(), oracle(values), rtol=1e-8, atol=1e-10)
    assert gradient[~torch.tensor(mask)].count_nonzero() == 0
    for b, i, t in np.argwhere(mask)[:6]:
        slopes = []
        for sign in (1, -1):
            moved = values.copy()
            moved[b, i, t] += sign * NUDGE
            slopes.append(sign * oracle(moved) / (2 * NUDGE))
        if clip is not None:
            beyond = abs(values[b, i, t] - old[b, i, t]) - clip
            near = old[b, i, t] + np.clip(values[b, i, t] - old[b, i, t], -clip, clip)
            crossing = abs((values[b, i, t] - target[b, i, t]) ** 2 - (near - target[b, i, t]) ** 2) < 1e-4
            if abs(beyond) < 1e-4 or (beyond > 0 and crossing):
                continue  # a kink: no slope to compare
        np.testing.assert_allclose(gradient[b, i, t].item(), sum(slopes), rtol=1e-5, atol=1e-8)


@settings(FEW, max_examples=20)
@given(seed=SEEDS, shape=SHAPES, beta=st.floats(0, 3), kind=KINDS)
def test_the_reference_penalty_and_its_gradient_equal_the_oracle(
    seed: int, shape: tuple[int, int, int], beta: float, kind: AggregationKind
) -> None:
    case = make_case(seed, 0.5, shape)
    c = coefficients(case.mask, kind)
    x = case.reference - case.p
    leaf = torch.tensor(case.p, requires_grad=True)
    aggregation = AggregationConfig(kind=kind, max_completion_tokens=MAX_TOKENS)
    loss = reference_penalty(leaf, case.batch(), ReferencePenaltyConfig(beta=beta), aggregation)
    (gradient,) = torch.autograd.grad(loss, leaf)
    k3 = np.where(case.mask, np.exp(x) - x - 1, 0.0)
    slope = np.where(case.mask, 1 - np.exp(x), 0.0)
    np.testing.assert_allclose(loss.item(), beta * (c[..., None] * k3).sum(), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(gradient.numpy(), beta * c[..., None] * slope, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_values_are_computed_in_float32(dtype: torch.dtype) -> None:
    mask, arrays = ragged(3, (3, 4, 40))
    rewards, values, old, _ = (torch.tensor(np.nan_to_num(array)).to(dtype) for array in arrays)
    on = torch.tensor(mask)
    half, exact = (gae(rewards.to(kind), values.to(kind), on, ValueConfig()) for kind in (dtype, torch.float64))
    for low, high in zip(half, exact, strict=True):
        assert low.dtype == torch.float32
        torch.testing.assert_close(low.double(), high, rtol=1e-5, atol=1e-5)
    leaf = values.clone().requires_grad_()
    loss = value_loss(leaf, old, rewards, on, ValueConfig(), AggregationConfig(kind="token_mean"))
    expected = value_loss(
        values.double(), old.double(), rewards.double(), on, ValueConfig(), AggregationConfig(kind="token_mean")
    )
    assert loss.dtype in (torch.float32, torch.float64)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)
    assert torch.isfinite(torch.autograd.grad(loss, leaf)[0]).all()
