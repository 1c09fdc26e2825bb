"""New ideas against float64 loops over their formulas, and their identities with the base that each changes."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from p2prl.algorithms.aggregation import AggregationConfig
from p2prl.algorithms.batch import RolloutBatch
from p2prl.algorithms.loss_registry import build_loss
from p2prl.algorithms.objective import build_objective
from p2prl.errors import ConfigError
from p2prl_lab.bench.staleness.methods import parse_method
from p2prl_lab.bench.staleness.new_ideas import NEW_IDEAS
from tests.unit.algorithms.loss_oracles import Case, coefficients, make_case

OPTIONS: dict[str, dict[str, object]] = {
    "variance_taper": {"width": 0.7},
    "surprisal_trust": {"trust": 0.1, "slope": 0.3},
    "ess_sharpness": {},
    "kl_budget": {"budget": 0.05},
    "aged": {"half_life": 20.0},
    "prefix_taper": {},
    "per_decision": {},
    "decisive": {"focus": 0.6},
    "hinged": {"free": 0.2, "pull": 0.3},
    "far_positives": {"least_ess": 0.6},
}
AT_REST: dict[str, dict[str, object]] = {
    "variance_taper": {"width": 0.0},
    "surprisal_trust": {"trust": 1e9},
    "kl_budget": {"budget": 1e9},
    "aged": {"half_life": 1e18},
    "decisive": {"focus": 0.0},
    "hinged": {"pull": 0.0},
    "far_positives": {"least_ess": 0.0},
}


def gradient(name: str, policy: Tensor, batch: RolloutBatch, **options: object) -> Tensor:
    aggregation = AggregationConfig(kind="seq_mean")
    if name in NEW_IDEAS:
        objective = build_objective(NEW_IDEAS[name], options=options, aggregation=aggregation)
    else:
        objective = build_loss(name, options=options, aggregation=aggregation)
    leaf = policy.detach().clone().requires_grad_()
    return torch.autograd.grad(objective.loss(leaf, batch).loss, leaf)[0]


def same(left: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-12)


def ess(ratios: list[float]) -> float:
    return sum(ratios) ** 2 / sum(r * r for r in ratios) / len(ratios)


def slope(name: str, case: Case, b: int, i: int, t: int) -> float:
    """Derivative of the objective by log p of one token, before aggregation."""
    on = case.mask[b, i]
    ps, qs, a = case.p[b, i][on], case.q[b, i][on], float(case.advantages[b, i])
    moves, length = ps - qs, len(ps)
    place = int(on[:t].sum())
    weight, bound, factor, extra = 1.0, moves.sum(), 1 / max(-ps.mean(), 0.01), 0.0
    every = (case.p - case.q)[case.mask]
    ratios = np.exp(np.where(case.mask, case.p - case.q, 0.0).sum(-1))
    match name:
        case "variance_taper":
            bound /= math.sqrt(1 + 0.7 * length * (every**2).mean())
        case "surprisal_trust":
            if moves[place] * np.sign(a) > 0.1 - 0.3 * qs[place]:
                factor = 0.0
        case "ess_sharpness":
            factor **= 1 - ess(list(ratios.flatten()))
        case "kl_budget":
            means = [abs((case.p - case.q)[g, j][case.mask[g, j]].mean()) for g, j in np.ndindex(case.mask.shape[:2])]
            nearer = [m for m in means if m <= abs(moves.mean())]
            factor *= sum(nearer) / len(nearer) <= 0.05
        case "aged":
            factor *= 0.5 ** (case.staleness[b, i] / 20)
        case "prefix_taper":
            bound = moves[: place + 1].sum()
        case "per_decision":
            return float(-min(math.exp(moves[: place + 1].sum()), 2.0) * factor * a)
        case "decisive":
            factor *= 0.4 + 0.6 * (1 - math.exp(qs[place])) / (1 - np.exp(qs)).mean()
        case "hinged":
            extra = 0.3 * max(0.0, abs(moves[place]) - 0.2) * np.sign(moves[place])
        case "far_positives":
            if a < 0 and ess(list(ratios[b])) < 0.6:
                factor = 0.0
    if a < 0:
        weight = min(weight, math.exp(bound))
    return float(-weight * factor * a + extra)


def test_ten_ideas_have_an_oracle() -> None:
    assert set(OPTIONS) == set(NEW_IDEAS)
    assert len(NEW_IDEAS) >= 10


@pytest.mark.parametrize("name", sorted(OPTIONS))
@pytest.mark.parametrize("spread", [0.05, 0.4, 1.0])
def test_gradients_equal_their_formulas(name: str, spread: float) -> None:
    for seed in range(3):
        case = make_case(seed, spread)
        c, expected = coefficients(case.mask, "seq_mean"), np.zeros_like(case.p)
        for b, i, t in np.argwhere(case.mask):
            expected[b, i, t] = c[b, i] * slope(name, case, b, i, t)
        found = gradient(name, torch.tensor(case.p), case.batch(), **OPTIONS[name])
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("name", sorted(AT_REST))
def test_neutral_options_equal_the_default(name: str) -> None:
    case = make_case(4, 0.6)
    policy, batch = torch.tensor(case.p), case.batch()
    expected = gradient("topr", policy, batch, sharpness=1.0)
    same(gradient(name, policy, batch, **AT_REST[name]), expected)
    assert bool((gradient(name, policy, batch, **OPTIONS[name]) - expected).abs().max() > 1e-9)


def test_on_policy_the_ideas_that_read_drift_change_nothing() -> None:
    case = make_case(5, 0.6)
    policy = torch.tensor(case.q)
    batch = case.batch()
    full, plain = (gradient("topr", policy, batch, sharpness=kappa) for kappa in (1.0, 0.0))
    for name in ("variance_taper", "surprisal_trust", "kl_budget", "prefix_taper", "hinged", "far_positives"):
        same(gradient(name, policy, batch, **OPTIONS[name]), full)
    same(gradient("ess_sharpness", policy, batch), plain)


def test_one_token_turns_the_prefix_into_the_sequence() -> None:
    case = make_case(6, 0.6)
    single = Case(
        **{name: value[..., :1] if getattr(value, "ndim", 0) == 3 else value for name, value in vars(case).items()}
    )
    single = dataclasses.replace(single, mask=np.ones_like(single.mask))
    policy, batch = torch.tensor(single.p), single.batch()
    same(gradient("prefix_taper", policy, batch), gradient("topr", policy, batch, sharpness=1.0))


def test_a_batch_without_ages_is_fresh() -> None:
    case = make_case(7, 0.6)
    policy, batch = torch.tensor(case.p), dataclasses.replace(case.batch(), staleness_BG=None)
    same(gradient("aged", policy, batch, half_life=1.0), gradient("topr", policy, batch, sharpness=1.0))


@pytest.mark.parametrize("name", sorted(NEW_IDEAS))
def test_padding_has_no_gradient_and_nan_in_it_does_no_harm(name: str) -> None:
    case = make_case(8, 0.6)
    batch = case.batch()
    poisoned = dataclasses.replace(
        batch, behavior_logprobs_BGT=torch.where(batch.mask_BGT.bool(), batch.behavior_logprobs_BGT, math.nan)
    )
    found = gradient(name, torch.tensor(case.p), poisoned)
    same(found, gradient(name, torch.tensor(case.p), batch))
    assert not found[~batch.mask_BGT.bool()].any()


@pytest.mark.parametrize(
    ("method", "field"),
    [
        ("variance_taper:width=-1", "width"), ("surprisal_trust:trust=0", "trust"),
        ("surprisal_trust:slope=11", "slope"), ("kl_budget:budget=0", "budget"), ("aged:half_life=0", "half_life"),
        ("hinged:free=-1", "free"), ("hinged:pull=11", "pull"), ("far_positives:least_ess=1.1", "least_ess"),
        ("decisive:focus=2", "focus"),
    ],
)  # fmt: skip
def test_options_out_of_range_are_refused(method: str, field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        parse_method(method, max_completion_tokens=8)


def test_the_learning_rate_falls_with_the_age_of_the_batch() -> None:
    method, none = parse_method("grpo+age=16", max_completion_tokens=8), torch.zeros(4)
    assert method.rate_factor(none[0], none, age=0.0) == 1.0
    assert method.rate_factor(none[0], none, age=48.0) == pytest.approx(0.5)


def test_patience_lasts_while_all_rollouts_are_the_starting_policys() -> None:
    method, none = parse_method("grpo+patience=.25", max_completion_tokens=8), torch.zeros(4)
    assert method.rate_factor(none[0], none, is_offline=True) == 0.25
    assert method.rate_factor(none[0], none, is_offline=False) == 1.0
    with pytest.raises(ConfigError, match="patience"):
        parse_method("grpo+patience=1", max_completion_tokens=8)
