"""Identities of the newer losses with those they generalize, their options against the oracles, and equal rewards."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from p2prl.algorithms.aggregation import AggregationConfig
from p2prl.algorithms.batch import RolloutBatch
from p2prl.algorithms.guards import second_moment_width
from p2prl.algorithms.loss_registry import BUILTIN_LOSSES, build_loss
from p2prl.errors import ConfigError
from tests.unit.algorithms.batches import random_batch
from tests.unit.algorithms.loss_oracles import Case, coefficients, make_case, ppo_min
from tests.unit.algorithms.rival_oracles import PULLS, clip_cov_dropped, covariances, m2po_widths

LIMIT = 12


def gradient(name: str, policy: Tensor, batch: RolloutBatch, **options: object) -> Tensor:
    objective = build_loss(name, options=options, aggregation=AggregationConfig(kind="seq_mean"))
    return torch.autograd.grad(objective.loss(policy, batch).loss, policy)[0]


def same(left: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-12)


def on_policy(seed: int) -> tuple[Tensor, RolloutBatch]:
    policy, batch = random_batch(seed)
    return policy, dataclasses.replace(batch, behavior_logprobs_BGT=policy.detach())


@pytest.mark.parametrize("name", sorted(BUILTIN_LOSSES))
def test_equal_rewards_leave_nothing_but_a_pull(name: str) -> None:
    policy, batch = random_batch(12)
    objective = build_loss(name, max_completion_tokens=LIMIT)
    advantages = objective.advantages(torch.full((3, 4), 0.1), batch.mask_BGT.sum(dim=-1)).advantages_BG
    output = objective.loss(policy, dataclasses.replace(batch, advantages_BG=advantages))
    moved = torch.autograd.grad(output.loss, policy)[0].count_nonzero() > 0
    assert bool(moved) == (name in PULLS)
    assert output.metrics["zero_advantage_groups"] == 3


@pytest.mark.parametrize("name", sorted(PULLS - {"asymre"}))
def test_a_pull_toward_the_sampler_ends_at_the_sampler(name: str) -> None:
    policy, batch = on_policy(13)
    assert gradient(name, policy, dataclasses.replace(batch, advantages_BG=torch.zeros(3, 4))).count_nonzero() == 0


def test_oapl_on_policy_is_reinforce_on_whole_completions() -> None:
    policy, batch = on_policy(1)
    lengths = batch.mask_BGT.sum(dim=-1, keepdim=True)
    same(gradient("oapl", policy, batch), lengths * gradient("reinforce", policy, batch))


def test_oapl_rests_where_the_log_ratio_is_the_advantage_over_beta() -> None:
    policy, batch = random_batch(2)
    drift = torch.where(batch.mask_BGT, policy.detach() - batch.behavior_logprobs_BGT, 0.0).sum(dim=-1)
    fitted = dataclasses.replace(batch, advantages_BG=0.03 * drift)
    same(gradient("oapl", policy, fitted, beta=0.03), torch.zeros_like(policy))
    assert gradient("oapl", policy, fitted, beta=0.02).abs().sum() > 0


def test_wide_bounds_turn_the_newer_losses_into_the_plain_ones() -> None:
    policy, batch = random_batch(3, spread=1.0)
    plain = gradient("grpo", policy, batch, clip_low=1.0, clip_high=1e9)
    same(gradient("ipo", policy, batch, threshold=1.0, kl_tau=0.0), plain)
    same(gradient("icepop", policy, batch, low=1e-9, high=1e9), plain)
    same(gradient("kl_cov", policy, batch, penalty=0.0), plain)
    same(gradient("m2po_clip", policy, batch, budget=1e9), plain)
    same(gradient("m2po_clip", policy, batch, budget=1e-9, least_low=1.0, least_high=1e9), plain)
    gspo = gradient("gspo", policy, batch, clip_low=1.0, clip_high=1e9)
    same(gradient("gmpo", policy, batch, log_clip_low=99.0, log_clip_high=99.0), gspo)


def test_m2po_clip_without_a_budget_is_the_narrowest_clip() -> None:
    policy, batch = random_batch(4, spread=1.0)
    same(
        gradient("m2po_clip", policy, batch, budget=1e-9), gradient("grpo", policy, batch, clip_low=0.3, clip_high=0.5)
    )


def test_clip_cov_without_candidates_is_grpo() -> None:
    policy, batch = random_batch(5, spread=1.0)
    same(gradient("clip_cov", policy, batch, cov_low=98.0, cov_high=99.0), gradient("grpo", policy, batch))


def test_one_token_completions_turn_gmpo_and_icepop_into_sequence_losses() -> None:
    policy, batch = random_batch(6, shape=(4, 4, 1), spread=0.6)
    clipped = gradient("grpo", policy, batch, clip_low=1 - math.exp(-0.4), clip_high=math.exp(0.4) - 1)
    same(gradient("gmpo", policy, batch), clipped)
    same(gradient("icepop", policy, batch, high=2.0), gradient("seq_mis", policy, batch))
    weights = [
        build_loss("normalized_tis", options={"level": level}).loss(policy, batch).weights_BGT
        for level in ("sequence", "token")
    ]
    same(weights[0], weights[1])


def test_luspo_is_gspo_with_completions_weighted_by_length() -> None:
    policy, batch = random_batch(7, spread=0.6)
    fixed = build_loss("luspo", max_completion_tokens=LIMIT).loss(policy, batch)
    lengths = batch.mask_BGT.sum(dim=-1, keepdim=True).double()
    found = torch.autograd.grad(fixed.loss, policy)[0]
    same(found, lengths / LIMIT * gradient("gspo", policy, batch))


@pytest.mark.parametrize("level", ["sequence", "token"])
def test_normalized_weights_have_mean_one(level: str) -> None:
    policy, batch = random_batch(8, spread=1.0)
    output = build_loss("normalized_tis", options={"level": level, "cap": 1.5}).loss(policy, batch)
    lengths = batch.mask_BGT.sum(dim=-1)
    sequences = output.weights_BGT.sum(dim=-1) / lengths
    mean = output.metrics["weight_mean"] if level == "token" else sequences.mean()
    assert float(mean) == pytest.approx(1.0)
    log_ratio = torch.where(batch.mask_BGT, policy.detach() - batch.behavior_logprobs_BGT, 0.0)
    plain = log_ratio if level == "token" else log_ratio.sum(dim=-1, keepdim=True).expand_as(log_ratio)
    truncated = plain.exp().clamp(max=1.5)[batch.mask_BGT]
    quotient = output.weights_BGT[batch.mask_BGT] / truncated
    assert float(quotient.std()) == pytest.approx(0.0, abs=1e-9)


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ConfigError, match="level") as caught:
        build_loss("normalized_tis", options={"level": "tokens"})
    assert "token" in caught.value.remedy


def test_vespo_weighs_most_where_the_ratio_is_power_over_decay() -> None:
    _, batch = random_batch(9)
    ratios = torch.tensor([1e-6, 2 / 3, 1.0, 1e3, 1e-6, 1.5, 1.0, 1e3], dtype=torch.float64).view(1, 8, 1)
    flat = dataclasses.replace(
        batch,
        mask_BGT=torch.ones(1, 8, 1),
        behavior_logprobs_BGT=torch.full((1, 8, 1), -9.0, dtype=torch.float64),
        advantages_BG=torch.tensor([[1.0, 1, 1, 1, -1, -1, -1, -1]], dtype=torch.float64),
        staleness_BG=None, proximal_logprobs_BGT=None, reference_logprobs_BGT=None,
    )  # fmt: skip
    weights = build_loss("vespo").loss(ratios.log() - 9.0, flat).weights_BGT.flatten().tolist()
    assert weights == pytest.approx([0, 4 / 9 * math.e, 1, 0, 0, 27 / 8 / math.e, 1, 0], abs=1e-9)


@pytest.mark.parametrize("spread", [0.3, 1.0])
def test_options_of_the_newer_losses_equal_their_formulas(spread: float) -> None:
    """Other options than the defaults, which the oracles have; covariances reach beyond one rarely."""
    case = make_case(5, spread)
    c = coefficients(case.mask, "seq_mean")
    sapo, vespo, dropped = np.zeros_like(case.p), np.zeros_like(case.p), np.zeros_like(case.p)
    chosen = clip_cov_dropped(case, 0.06, 0.1, 0.9)
    pulled = np.sort(covariances(case)[case.mask])[-int(0.2 * case.mask.sum())]
    cov, kl = covariances(case), np.zeros_like(case.p)
    assert chosen.sum() == int(0.06 * case.mask.sum()) == 2
    for b, i, t in np.argwhere(case.mask):
        p, q, a = case.p[b, i, t], case.q[b, i, t], case.advantages[b, i]
        r = math.exp(p - q)
        tau = 2.1 if a > 0 else 3.3
        gate = 1 / (1 + math.exp(-tau * (r - 1)))
        sapo[b, i, t] = -c[b, i] * 4 * gate * (1 - gate) * r * a
        w = math.exp((case.p - case.q)[b, i][case.mask[b, i]].sum())
        vespo[b, i, t] = (
            -c[b, i] * a * (w**1.1 * math.exp(0.7 * (1 - w)) if a > 0 else w**0.9 * math.exp(1.3 * (1 - w)))
        )
        dropped[b, i, t] = 0.0 if chosen[b, i, t] else c[b, i] * ppo_min(r, a, 0.2, 0.2)[1]
        kl[b, i, t] = c[b, i] * (-r * a + 0.5 * (cov[b, i, t] >= pulled) * np.sign(p - q))
    for name, options, expected in (
        ("sapo", {"tau_pos": 2.1, "tau_neg": 3.3}, sapo),
        ("vespo", {"power_pos": 1.1, "decay_pos": 0.7, "power_neg": 0.9, "decay_neg": 1.3}, vespo),
        ("clip_cov", {"share": 0.06, "cov_low": 0.1, "cov_high": 0.9}, dropped),
        ("kl_cov", {"share": 0.2, "penalty": 0.5}, kl),
    ):
        found = gradient(name, torch.tensor(case.p, requires_grad=True), case.batch(), **options)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-8, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("budget", [0.01, 0.04, 0.16])
def test_the_width_of_the_clip_keeps_the_second_moment_within_its_budget(budget: float) -> None:
    case = make_case(6, 0.6)
    log_ratio = (case.p - case.q)[case.mask]
    outward = log_ratio[(np.broadcast_to(case.advantages[..., None], case.p.shape)[case.mask] * log_ratio) > 0]
    width = second_moment_width(torch.tensor(outward), budget=budget)
    sizes = np.sort(np.abs(outward))
    assert width in sizes
    assert (np.minimum(sizes, width) ** 2).mean() < budget
    (wider,) = sizes[np.searchsorted(sizes, width, side="right")][None]
    assert (np.minimum(sizes, wider) ** 2).mean() >= budget
    options: dict[str, Any] = {"budget": budget, "least_low": 0.0, "least_high": 0.0}
    output = build_loss("m2po_clip", options=options).loss(torch.tensor(case.p), case.batch())
    assert float(output.metrics["clip_width"]) == pytest.approx(width)
    assert m2po_widths(case, budget) == pytest.approx((max(1 - math.exp(-width), 0.3), max(math.exp(width) - 1, 0.5)))


def test_the_width_without_tokens_or_above_the_budget() -> None:
    assert second_moment_width(torch.zeros(0)) == 20.0
    assert second_moment_width(torch.tensor([0.1, -0.1])) == 20.0
    assert second_moment_width(torch.tensor([3.0, -3.0])) == 0.0
    with pytest.raises(ConfigError, match="budget"):
        second_moment_width(torch.ones(2), budget=0.0)


def test_ipo_drops_by_probability_whatever_the_sign() -> None:
    case = make_case(7, 1.0)
    flipped = Case(**{**vars(case), "advantages": -case.advantages})
    bounds = [
        build_loss("ipo").loss(torch.tensor(each.p), each.batch()).bounded_BGT.numpy() for each in (case, flipped)
    ]
    assert (bounds[0] == bounds[1]).all()
    assert (bounds[0][case.mask] == (np.abs(np.exp(case.p) - np.exp(case.q)) > 0.3)[case.mask]).all()
    assert 0 < bounds[0].sum() < case.mask.sum()


def test_the_first_token_of_minpro_weighs_its_own_ratio_and_a_left_prefix_mutes_the_rest() -> None:
    policy, batch = random_batch(4, spread=0.3)
    full = dataclasses.replace(batch, mask_BGT=torch.ones_like(batch.mask_BGT))
    behavior = full.behavior_logprobs_BGT.clone()
    behavior[0, 0, 1] = 0.0
    left = policy.detach().clone()
    left[0, 0, 1] = -9.0
    weights = build_loss("minpro").loss(left, dataclasses.replace(full, behavior_logprobs_BGT=behavior)).weights_BGT
    ratios = (left - behavior).exp()
    same(weights[..., 0], ratios[..., 0].clamp(max=5.0))
    assert bool((weights[0, 0, 2:] <= 5 * math.exp(-9)).all())
    policy, fresh = on_policy(4)
    same(gradient("minpro", policy, fresh), gradient("cispo", policy, fresh))


def test_mu_grpo_without_a_veto_is_grpo_with_its_clip_and_the_veto_spares_successes() -> None:
    policy, batch = random_batch(5, spread=1.5)
    plain = gradient("grpo", policy, batch, clip_low=0.8, clip_high=4.0)
    same(gradient("mu_grpo", policy, batch, veto=0.0), plain)
    vetoed = gradient("mu_grpo", policy, batch, veto=0.5)
    same(vetoed[batch.advantages_BG >= 0], plain[batch.advantages_BG >= 0])
    failures = batch.advantages_BG < 0
    assert (vetoed[failures] == 0).sum() > (plain[failures] == 0).sum()
    assert bool(((vetoed == plain) | (vetoed == 0)).all())


def test_ctpo_weighs_by_the_ratio_of_the_prefix_and_clips_later_tokens_wider() -> None:
    policy, batch = random_batch(6, spread=0.5)
    wide = {"log_clip_low": 20.0, "log_clip_high": 20.0, "log_clip_dual": 20.0}
    weights = build_loss("ctpo", options=wide).loss(policy, batch).weights_BGT
    log_ratio = torch.where(batch.mask_BGT, policy.detach() - batch.behavior_logprobs_BGT, 0.0)
    same(weights, torch.where(batch.mask_BGT, log_ratio.cumsum(dim=-1).exp(), 0.0))
    # Every token's ratio is e^.1, so the prefix's is e^(.1 t): inside a clip of .2 t^.5 up to the fourth token, and of
    # .2 at every token up to the second.
    mask = torch.ones(1, 2, 9, dtype=torch.bool)
    behavior = torch.full(mask.shape, -1.0, dtype=torch.float64)
    even = RolloutBatch(
        behavior_logprobs_BGT=behavior,
        mask_BGT=mask,
        advantages_BG=torch.tensor([[1.0, -1.0]], dtype=torch.float64),
    )
    for power, last in ((0.5, 4), (0.0, 2)):
        options = {"log_clip_high": 0.2001, "log_clip_dual": 0.2001, "power": power}
        found = build_loss("ctpo", options=options).loss(behavior + 0.1, even).weights_BGT
        assert (found > 0).sum(dim=-1).tolist() == [[last, last]]
        falling = build_loss("ctpo", options=options).loss(behavior - 0.1, even).weights_BGT
        # A success that has become rarer is never clipped; a failure is at once.
        assert (falling > 0).sum(dim=-1).tolist() == [[9, 0]]


def test_ctpo_of_one_token_is_grpo_with_a_clip_on_both_sides_of_failures() -> None:
    policy, batch = random_batch(7, shape=(4, 4, 1), spread=0.6)
    bounds = {"log_clip_low": 0.3, "log_clip_high": 0.4, "log_clip_dual": 1.1}
    plain = {"clip_low": 1 - math.exp(-0.3), "clip_high": math.exp(0.4) - 1, "delta": math.exp(1.1)}
    same(gradient("ctpo", policy, batch, **bounds), gradient("two_sided", policy, batch, **plain))
