"""Every loss against its oracle: value, gradient, finite differences and the weights it reports."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from p2prl.algorithms.loss_registry import BUILTIN_LOSSES, build_loss, loss_by_name
from p2prl.errors import LocalProtocolError
from tests.unit.algorithms.loss_oracles import (
    MAX_TOKENS,
    Array,
    Case,
    coefficients,
    dpo_oracle,
    gepo_t,
    gex,
    make_case,
    run,
)
from tests.unit.algorithms.rival_oracles import ORACLES, PULLS


def test_every_loss_has_an_oracle() -> None:
    assert set(ORACLES) | {"dpo"} == set(BUILTIN_LOSSES)


@pytest.mark.parametrize("kind", ["seq_mean", "token_mean", "fixed_length", "delta_l"])
@pytest.mark.parametrize("name", sorted(ORACLES))
def test_value_and_gradient_equal_the_oracle(name: str, kind: str) -> None:
    for seed, spread in enumerate([0.0, 0.03, 0.3, 1.0, 2.0]):
        case = make_case(seed, spread)
        c = coefficients(case.mask, kind)
        values, expected = ORACLES[name](case, c)
        output, gradient = run(name, case, kind)
        np.testing.assert_allclose(output.loss.item(), (c[..., None] * values).sum(), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(gradient, expected, rtol=1e-8, atol=1e-9)


SHAPES = [(1, 1, 1), (2, 1, 5), (1, 5, 1), (2, 2, 3)]


# With groups of one all advantages agree, and rounding alone orders the covariances of kl_cov.
@pytest.mark.parametrize(
    ("name", "shape"),
    [(name, shape) for name in sorted(ORACLES) for shape in SHAPES if (name, shape) != ("kl_cov", (2, 1, 5))],
)
def test_degenerate_shapes_equal_the_oracle(name: str, shape: tuple[int, int, int]) -> None:
    case = make_case(7, 0.4, shape)
    forced = Case(**{**vars(case), "advantages": np.where(np.arange(shape[1]) % 2, -0.7, 0.9) * np.ones(shape[:2])})
    c = coefficients(forced.mask, "seq_mean")
    values, expected = ORACLES[name](forced, c)
    output, gradient = run(name, forced, "seq_mean")
    np.testing.assert_allclose(output.loss.item(), (c[..., None] * values).sum(), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(gradient, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("tie", [False, True])
def test_dpo_equals_the_oracle(tie: bool) -> None:
    for seed, spread in enumerate([0.0, 0.3, 2.0]):
        case = make_case(seed, spread)
        if tie:
            binary = np.array([[1.0, 1, 0, 0], [0, 0, 0, 1], [1, 0, 1, 1]])
            case = Case(**{**vars(case), "advantages": binary - binary.mean(-1, keepdims=True)})
        loss, expected = dpo_oracle(case)
        output, gradient = run("dpo", case, "seq_mean")
        np.testing.assert_allclose(output.loss.item(), loss, rtol=1e-9)
        np.testing.assert_allclose(gradient, expected, rtol=1e-8, atol=1e-10)


def weighted_gradient(case: Case, weigh: Callable[[Array, Array, float, int, int], float | Array]) -> Array:
    """−c w A of every token: `weigh` gives w of a completion from its log-probs, its sampler's, A and its place."""
    c, expected = coefficients(case.mask, "seq_mean"), np.zeros_like(case.p)
    for b in range(3):
        for i in range(4):
            on, a = case.mask[b, i], case.advantages[b, i]
            expected[b, i][on] = -c[b, i] * a * weigh(case.p[b, i][on], case.q[b, i][on], a, b, i)
    return expected


def over_nll(ps: Array, sharpness: float) -> float:
    """1/NLL^κ; of the NLLs of the case some lie below this floor, some above."""
    return float(max(-float(ps.mean()), 1.1) ** -sharpness)


@pytest.mark.parametrize(("negatives", "sharpness"), [(1.0, 0.0), (0.3, 0.0), (0.0, 0.0), (1.0, 1.0), (0.3, 0.5)])
@pytest.mark.parametrize("taper_name", ["sequence", "geometric", "token"])
@pytest.mark.parametrize("name", ["gepo_t", "gex"])
def test_tapers_equal_the_oracle(name: str, taper_name: str, negatives: float, sharpness: float) -> None:
    case = make_case(3, 0.8)

    def weigh(ps: Array, qs: Array, a: float, b: int, i: int) -> Array:
        untapered = {"gepo_t": gepo_t, "gex": gex}[name](ps, qs, 1.0, case, b, i)
        bound = {
            "sequence": np.full(len(ps), math.exp(np.sum(ps - qs))),
            "geometric": np.full(len(ps), math.exp(np.mean(ps - qs))),
            "token": np.exp(ps - qs),
        }[taper_name]
        w = negatives * np.minimum(np.minimum(untapered, 1.0), bound) if a < 0 else np.full(len(ps), untapered)
        return np.asarray(w * over_nll(ps, sharpness))

    expected = weighted_gradient(case, weigh)
    policy = torch.tensor(case.p, requires_grad=True)
    options = {"taper": taper_name, "negatives": negatives, "sharpness": sharpness, "nll_floor": 1.1}
    output = build_loss(name, options=options).loss(policy, case.batch())
    (gradient,) = torch.autograd.grad(output.loss, policy)
    np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-8, atol=1e-10)
    lowered = ((case.advantages < 0)[..., None] & case.mask).sum()
    assert 0 < output.metrics["tapered_fraction"].item() <= lowered / case.mask.sum()


@pytest.mark.parametrize("sharpness", [0.0, 0.5, 1.0])
def test_topr_divided_by_nll_equals_the_oracle(sharpness: float) -> None:
    case = make_case(3, 0.8)

    def weigh(ps: Array, qs: Array, a: float, *_: int) -> float:
        return (min(1.0, math.exp(np.sum(ps - qs))) if a < 0 else 1.0) * over_nll(ps, sharpness)

    expected = weighted_gradient(case, weigh)
    policy = torch.tensor(case.p, requires_grad=True)
    output = build_loss("topr", options={"sharpness": sharpness, "nll_floor": 1.1}).loss(policy, case.batch())
    (gradient,) = torch.autograd.grad(output.loss, policy)
    np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-8, atol=1e-10)


CREDITED = sorted(name for name in BUILTIN_LOSSES if loss_by_name(name).token_advantages)


@pytest.mark.parametrize("name", CREDITED)
def test_each_token_is_trained_as_in_a_completion_of_its_own_advantage(name: str) -> None:
    """No weight depends on the advantage of another token, so the oracle of one completion holds for each token."""
    for seed, spread in enumerate([0.0, 0.3, 1.0]):
        case = make_case(seed, spread)
        c = coefficients(case.mask, "seq_mean")
        values, expected = np.zeros_like(case.p), np.zeros_like(case.p)
        for t in range(case.p.shape[-1]):
            alone = Case(**{**vars(case), "advantages": case.token_advantages[..., t]})
            of_all = ORACLES[name](alone, c)
            values[..., t], expected[..., t] = of_all[0][..., t], of_all[1][..., t]
        output, gradient = run(name, case, "seq_mean", per_token=True)
        np.testing.assert_allclose(output.loss.item(), (c[..., None] * values).sum(), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(gradient, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", sorted(set(BUILTIN_LOSSES) - set(CREDITED)))
def test_other_losses_refuse_an_advantage_for_each_token(name: str) -> None:
    with pytest.raises(LocalProtocolError, match=f"{name} takes one advantage per completion"):
        run(name, make_case(0, 0.3), "seq_mean", per_token=True)


DIFFERENTIABLE = [
    *["grpo", "dr_grpo", "dapo", "bnpo", "two_sided", "gspo", "gepo", "gepo_paper", "gepo_plus", "eqp", "m2po"],
    *["decoupled_ppo", "opsm", "dppo", "ppo", "dpo", "reinforce", "asymre"],
    *["oapl", "luspo", "gmpo", "sapo", "ipo", "m2po_clip", "clip_cov", "kl_cov", "mu_grpo"],
]


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradient_equals_finite_differences(name: str) -> None:
    """Losses whose gradient is the derivative of their value; the others stop the gradient of a weight on purpose."""
    case = make_case(11, 0.25, (2, 3, 4))
    objective, batch = build_loss(name, max_completion_tokens=MAX_TOKENS), case.batch()
    policy = torch.tensor(case.p, requires_grad=True)
    assert torch.autograd.gradcheck(lambda logprobs: objective.loss(logprobs, batch).loss, (policy,), atol=1e-7)


UNWEIGHTED = {"eqp", "ppo"} | PULLS - {"oapl"}
"""Losses with a gradient that no weight on the advantage expresses."""


@pytest.mark.parametrize("name", sorted(set(ORACLES) - UNWEIGHTED))
def test_reported_weights_are_the_gradient_coefficients(name: str) -> None:
    """gradient = −c · weight · A on every token, so the diagnostics show the actual training weights."""
    for seed, spread in enumerate([0.0, 0.5, 2.0]):
        case = make_case(seed, spread)
        output, gradient = run(name, case, "seq_mean")
        expected = (
            -coefficients(case.mask, "seq_mean")[..., None] * output.weights_BGT.numpy() * case.advantages[..., None]
        )
        np.testing.assert_allclose(gradient, expected, rtol=1e-8, atol=1e-10)
        assert output.metrics["weight_max"].item() == output.weights_BGT.max().item()
        weights = output.weights_BGT.numpy()[case.mask]
        np.testing.assert_allclose(output.metrics["weight_mean"].item(), weights.mean(), rtol=1e-9)
        np.testing.assert_allclose(output.metrics["weight_variance"].item(), weights.var(), rtol=1e-7, atol=1e-12)
