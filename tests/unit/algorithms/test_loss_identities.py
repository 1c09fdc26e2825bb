"""Identities between losses, and edge cases of every loss: on policy, no signal, in parts, off the mask."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from p2prl.algorithms.aggregation import AggregationConfig, AggregationKind
from p2prl.algorithms.batch import RolloutBatch
from p2prl.algorithms.loss_registry import BUILTIN_LOSSES, build_loss, loss_by_name
from p2prl.algorithms.microbatch import microbatch
from p2prl.errors import LocalProtocolError
from tests.unit.algorithms.batches import random_batch
from tests.unit.algorithms.rival_oracles import COUPLED

LIMIT = 12


def gradient(name: str, policy: Tensor, batch: RolloutBatch, kind: AggregationKind = "seq_mean") -> Tensor:
    aggregation = AggregationConfig(kind=kind, max_completion_tokens=LIMIT)
    (result,) = torch.autograd.grad(build_loss(name, aggregation=aggregation).loss(policy, batch).loss, policy)
    return result


def same(left: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-12)


ON_POLICY_REINFORCE = [
    *["grpo", "dr_grpo", "dapo", "bnpo", "two_sided", "gspo", "gex", "tis", "cispo", "topr", "seq_mis", "m2po"],
    *["decoupled_ppo", "a3po", "opsm", "dppo", "ppo"],
    *["luspo", "gmpo", "sapo", "vespo", "icepop", "ipo", "m2po_clip", "normalized_tis", "kl_cov"],
    *["minpro", "mu_grpo", "ctpo"],
]


@pytest.mark.parametrize("name", ON_POLICY_REINFORCE)
def test_on_policy_these_are_all_reinforce(name: str) -> None:
    policy, batch = random_batch(1, spread=0.0)
    batch = dataclasses.replace(batch, behavior_logprobs_BGT=policy.detach(), proximal_logprobs_BGT=None)
    same(gradient(name, policy, batch), gradient("reinforce", policy, batch))


@pytest.mark.parametrize("name", ["gepo", "gepo_t", "gepo_paper", "eqp"])
def test_on_policy_gepo_weighs_by_probability_and_is_not_reinforce(name: str) -> None:
    policy, batch = random_batch(1, spread=0.0)
    batch = dataclasses.replace(batch, behavior_logprobs_BGT=policy.detach())
    assert not torch.allclose(gradient(name, policy, batch), gradient("reinforce", policy, batch), rtol=0.02)


@pytest.mark.parametrize("name", ["gepo_t", "gepo"])
def test_on_policy_with_equal_likelihoods_gepo_is_reinforce(name: str) -> None:
    _, batch = random_batch(2)
    flat = torch.full(batch.mask_BGT.shape, -0.8, dtype=torch.float64, requires_grad=True)
    batch = dataclasses.replace(batch, behavior_logprobs_BGT=flat.detach())
    same(gradient(name, flat, batch), gradient("reinforce", flat, batch))


def test_groups_of_one_turn_gepo_into_gspo_without_clip() -> None:
    policy, batch = random_batch(3, shape=(5, 1, 4))
    batch = dataclasses.replace(batch, advantages_BG=torch.linspace(-1, 1, 5, dtype=torch.float64).unsqueeze(-1))
    gepo = build_loss("gepo").loss(policy, batch)
    gspo = build_loss("gspo", options={"clip_low": 1.0, "clip_high": 1e9}).loss(policy, batch)
    same(gepo.loss, gspo.loss)
    same(torch.autograd.grad(gepo.loss, policy)[0], torch.autograd.grad(gspo.loss, policy)[0])


def test_equal_sampler_likelihoods_turn_gepo_into_gspo_without_clip() -> None:
    policy, batch = random_batch(4)
    batch = dataclasses.replace(batch, behavior_logprobs_BGT=torch.full_like(policy, -0.9).detach())
    gepo = build_loss("gepo").loss(policy, batch)
    gspo = build_loss("gspo", options={"clip_low": 1.0, "clip_high": 1e9}).loss(policy, batch)
    same(gepo.loss, gspo.loss)


def test_gepo_clip_is_the_released_clip_without_the_penalty() -> None:
    policy, batch = random_batch(5, spread=1.0)
    ours = build_loss("gepo", options={"clip": 0.2}).loss(policy, batch)
    paper = build_loss("gepo_paper", options={"kl_beta": 0.0}).loss(policy, batch)
    same(ours.loss, paper.loss)


def test_gepo_plus_switch_reaches_both_ends() -> None:
    policy, batch = random_batch(6)
    never = build_loss("gepo_plus", options={"kl_switch": 0.0}).loss(policy, batch)
    same(never.loss, build_loss("gepo_paper").loss(policy, batch).loss)
    always = build_loss("gepo_plus", options={"kl_switch": 1e9, "kl_beta": 0.0}).loss(policy, batch)
    same(always.loss, build_loss("gspo").loss(policy, batch).loss)
    assert always.metrics["gspo_fraction"] == 1
    assert never.metrics["gspo_fraction"] == 0


def test_one_token_completions_make_token_and_sequence_ratios_agree() -> None:
    policy, batch = random_batch(7, shape=(4, 4, 1), spread=0.3)
    same(gradient("grpo", policy, batch), gradient("gspo", policy, batch))
    tapers = [
        build_loss("gepo_t", options={"taper": t}).loss(policy, batch) for t in ("sequence", "geometric", "token")
    ]
    same(tapers[0].weights_BGT, tapers[1].weights_BGT)
    same(tapers[0].weights_BGT, tapers[2].weights_BGT)


def test_gex_far_off_policy_is_gepo_t() -> None:
    policy, batch = random_batch(8)
    apart = torch.arange(4, dtype=torch.float64).view(1, 4, 1) * 800
    policy = (policy.detach() - apart).requires_grad_()
    same(gradient("gex", policy, batch), gradient("gepo_t", policy, batch))
    assert build_loss("gex").loss(policy, batch).metrics["mixing"] < 1e-6


def test_two_sided_and_opsm_without_their_bounds_are_grpo() -> None:
    policy, batch = random_batch(9, spread=1.0)
    grpo = build_loss("grpo").loss(policy, batch).loss
    same(build_loss("two_sided", options={"delta": 1e8}).loss(policy, batch).loss, grpo)
    same(build_loss("opsm", options={"bound_nats": 1e8}).loss(policy, batch).loss, grpo)
    assert not torch.equal(build_loss("two_sided", options={"delta": 1.3}).loss(policy, batch).loss, grpo)
    assert not torch.equal(build_loss("opsm", options={"bound_nats": 0.0}).loss(policy, batch).loss, grpo)


def test_decoupled_ppo_without_proximal_is_token_importance_sampling() -> None:
    policy, batch = random_batch(10, spread=0.6)
    batch = dataclasses.replace(batch, proximal_logprobs_BGT=None)
    same(gradient("decoupled_ppo", policy, batch), gradient("cispo", policy, batch))


def test_a3po_one_update_behind_is_grpo() -> None:
    policy, batch = random_batch(11)
    batch = dataclasses.replace(batch, staleness_BG=torch.ones(3, 4, dtype=torch.long))
    same(gradient("a3po", policy, batch), gradient("grpo", policy, batch))


@pytest.mark.parametrize("name", ["gepo_paper", "gepo_plus", "dppo", "ipo"])
def test_equal_rewards_leave_only_the_penalty(name: str) -> None:
    policy, batch = random_batch(12)
    batch = dataclasses.replace(batch, advantages_BG=torch.zeros(3, 4))
    option = {"kl_tau": 0.0} if name in ("dppo", "ipo") else {"kl_beta": 0.0}
    with_penalty, without = build_loss(name).loss(policy, batch), build_loss(name, options=option).loss(policy, batch)
    assert torch.autograd.grad(with_penalty.loss, policy)[0].abs().sum() > 0
    assert torch.autograd.grad(without.loss, policy)[0].count_nonzero() == 0


@pytest.mark.parametrize("name", sorted(BUILTIN_LOSSES))
def test_values_off_the_mask_are_never_read(name: str) -> None:
    policy, batch = random_batch(13)
    clean = gradient(name, policy, batch)
    junk = torch.tensor([float("nan"), float("inf"), float("-inf"), 7.0, -3e38], dtype=torch.float64)
    filler = junk[torch.arange(policy.numel()) % 5].reshape(policy.shape)

    def spoil(values: Tensor) -> Tensor:
        return torch.where(batch.mask_BGT, values, filler)

    spoiled = dataclasses.replace(
        batch,
        behavior_logprobs_BGT=spoil(batch.behavior_logprobs_BGT),
        proximal_logprobs_BGT=spoil(batch.behavior_logprobs_BGT),
        reference_logprobs_BGT=spoil(
            batch.reference_logprobs_BGT if batch.reference_logprobs_BGT is not None else policy
        ),
    )
    expected = dataclasses.replace(batch, proximal_logprobs_BGT=batch.behavior_logprobs_BGT)
    dirty = gradient(name, spoil(policy.detach()).requires_grad_(), spoiled)
    same(dirty, clean if name != "decoupled_ppo" else gradient(name, policy, expected))
    assert dirty[~batch.mask_BGT].count_nonzero() == 0


@pytest.mark.parametrize("kind", ["seq_mean", "token_mean", "fixed_length", "delta_l"])
@pytest.mark.parametrize("name", sorted(set(BUILTIN_LOSSES) - COUPLED))
def test_parts_of_an_update_add_up(name: str, kind: AggregationKind) -> None:
    policy, batch = random_batch(14, shape=(4, 4, 5))
    kind = "seq_mean" if name == "dpo" else kind
    whole = gradient(name, policy, batch, kind)
    cuts: list[tuple[slice, slice]] = [(slice(0, 1), slice(None)), (slice(1, 4), slice(None))]
    if not loss_by_name(name).needs_whole_groups:
        cuts = [(rows, columns) for rows, _ in cuts for columns in (slice(0, 3), slice(3, 4))]
    total = torch.zeros_like(whole)
    for rows, columns in cuts:
        part = microbatch(batch, groups=rows, completions=columns)
        leaf = policy.detach()[rows, columns].clone().requires_grad_()
        total[rows, columns] = gradient(name, leaf, part, kind)
    same(total, whole)


@pytest.mark.parametrize("name", sorted(name for name in BUILTIN_LOSSES if loss_by_name(name).needs_whole_groups))
def test_coupled_losses_refuse_split_groups(name: str) -> None:
    policy, batch = random_batch(15)
    part = microbatch(batch, completions=slice(0, 2))
    with pytest.raises(LocalProtocolError, match="whole_groups"):
        build_loss(name).loss(policy[:, :2], part)


def test_part_of_a_part_keeps_the_totals() -> None:
    policy, batch = random_batch(15)
    split = microbatch(batch, completions=slice(0, 2))
    again = microbatch(split, groups=slice(0, 1))
    assert not again.whole_groups
    assert again.update_lengths_N is not None
    assert again.update_lengths_N.tolist() == batch.mask_BGT.sum(-1).flatten().tolist()
    whole = build_loss("gepo").loss(policy, batch).weights_BGT
    same(build_loss("gepo").loss(policy[:1, :2], again).weights_BGT, whole[:1, :2])


def test_two_sided_reports_what_delta_bounds() -> None:
    _, batch = random_batch(26)
    policy = torch.full(batch.mask_BGT.shape, -0.1, dtype=torch.float64)
    far = dataclasses.replace(
        batch, behavior_logprobs_BGT=policy - 3, advantages_BG=torch.full((3, 4), -1.0, dtype=torch.float64)
    )
    output = build_loss("two_sided").loss(policy, far)
    assert output.metrics["bounded_fraction"] == 1
    assert output.loss.item() == pytest.approx(4.0)


@pytest.mark.parametrize("name", sorted(set(BUILTIN_LOSSES) - {"dpo", "eqp"}))
def test_zero_guard_removes_one_completion_only(name: str) -> None:
    policy, batch = random_batch(16)
    clean = gradient(name, policy, batch)
    guard = torch.ones(batch.mask_BGT.shape)
    guard[1, 2] = 0
    guarded = gradient(name, policy, dataclasses.replace(batch, guard_BGT=guard))
    assert guarded[1, 2].count_nonzero() == 0
    others = torch.ones(3, 4, dtype=torch.bool)
    others[1, 2] = False
    same(guarded[others], clean[others])


@pytest.mark.parametrize("name", ["gepo", "gepo_t", "gex", "grpo", "cispo", "tis", "asympo"])
def test_a_weight_cap_bounds_every_weight(name: str) -> None:
    policy, batch = random_batch(17, spread=1.5)
    free = build_loss(name).loss(policy, batch)
    output = build_loss(name).loss(policy, dataclasses.replace(batch, weight_cap_BG=torch.full((3, 4), 0.5)))
    torch.testing.assert_close(output.weights_BGT, free.weights_BGT.clamp(max=0.5))
    assert free.metrics["weight_max"] > 0.5
    assert output.metrics["bounded_fraction"] > free.metrics["bounded_fraction"]


@pytest.mark.parametrize("name", ["asympo", "asymre", "reinforce"])
def test_logprob_free_losses_ignore_the_sampler(name: str) -> None:
    policy, batch = random_batch(18)
    lying = dataclasses.replace(batch, behavior_logprobs_BGT=batch.behavior_logprobs_BGT - 4)
    same(gradient(name, policy, batch), gradient(name, policy, lying))


@pytest.mark.parametrize("name", sorted(name for name in BUILTIN_LOSSES if loss_by_name(name).uses_behavior_logprobs))
def test_other_losses_read_the_sampler(name: str) -> None:
    policy, batch = random_batch(18, spread=0.1)
    batch = dataclasses.replace(batch, proximal_logprobs_BGT=None, reference_logprobs_BGT=None)
    shifted = batch.behavior_logprobs_BGT.clone()
    shifted[0, 0] -= 0.15
    shifted[1, :] -= 0.35
    shifted[2, :] = (shifted[2, :] + 0.35).clamp(max=-1e-3)
    other = dataclasses.replace(batch, behavior_logprobs_BGT=shifted)
    assert not torch.allclose(gradient(name, policy, batch), gradient(name, policy, other), rtol=1e-3, atol=0)


def test_asymre_moves_equal_rewards_by_delta_v() -> None:
    policy, batch = random_batch(19)
    batch = dataclasses.replace(batch, advantages_BG=torch.zeros(3, 4))
    lengths = batch.mask_BGT.sum(-1, keepdim=True).double()
    expected = torch.where(batch.mask_BGT, -0.1 / (12 * lengths), torch.zeros_like(policy))
    same(gradient("asymre", policy, batch), expected)


def test_token_advantages_drive_ppo() -> None:
    policy, batch = random_batch(20)
    spread_out = batch.advantages_BG.unsqueeze(-1).expand(policy.shape)
    same(
        gradient("ppo", policy, dataclasses.replace(batch, token_advantages_BGT=spread_out)),
        gradient("ppo", policy, batch),
    )


def test_a_cap_and_a_guard_multiply() -> None:
    policy, batch = random_batch(21)
    capped = dataclasses.replace(batch, weight_cap_BG=torch.full((3, 4), 0.25))
    both = dataclasses.replace(capped, guard_BGT=torch.full(batch.mask_BGT.shape, 0.5))
    same(gradient("reinforce", policy, capped), 0.25 * gradient("reinforce", policy, batch))
    same(gradient("reinforce", policy, both), 0.125 * gradient("reinforce", policy, batch))


@pytest.mark.parametrize("name", ["grpo", "gepo_t", "dpo"])
def test_kl_k1_is_the_mean_of_sampler_minus_policy(name: str) -> None:
    policy, batch = random_batch(22)
    expected = (batch.behavior_logprobs_BGT - policy.detach())[batch.mask_BGT].mean()
    same(build_loss(name).loss(policy, batch).metrics["kl_k1"], expected)


def test_only_negatives_are_tapered() -> None:
    policy, batch = random_batch(23)
    abandoned = dataclasses.replace(batch, behavior_logprobs_BGT=torch.full_like(policy, -0.01).detach())
    for advantage, tapered in ((-1.0, 1), (0.0, 0), (1.0, 0)):
        output = build_loss("gepo_t").loss(
            policy, dataclasses.replace(abandoned, advantages_BG=torch.full((3, 4), advantage))
        )
        assert output.metrics["tapered_fraction"] == tapered


@pytest.mark.parametrize(("policy_nats", "behavior_nats", "weight"), [(-40.0, -1.0, -3.0), (-1.0, -40.0, 3.0)])
def test_gepo_weight_clamp_stops_the_gradient(policy_nats: float, behavior_nats: float, weight: float) -> None:
    _, batch = random_batch(24)
    policy = torch.full(batch.mask_BGT.shape, policy_nats, dtype=torch.float64, requires_grad=True)
    far = dataclasses.replace(
        batch,
        behavior_logprobs_BGT=torch.full_like(policy, behavior_nats).detach(),
        advantages_BG=torch.ones(3, 4, dtype=torch.float64),
    )
    output = build_loss("gepo", options={"log_weight_bound": 3.0}).loss(policy, far)
    same(output.loss.detach(), -torch.tensor(weight, dtype=torch.float64).exp())
    assert torch.autograd.grad(output.loss, policy)[0].count_nonzero() == 0
    assert output.metrics["bounded_fraction"] == 1


def test_asympo_divides_by_no_less_than_its_floor() -> None:
    _, batch = random_batch(25)
    certain = torch.full(batch.mask_BGT.shape, -1e-9, dtype=torch.float64)
    output = build_loss("asympo", options={"nll_floor": 0.02}).loss(certain, batch)
    assert output.metrics["weight_max"].item() == pytest.approx(50)
    assert output.metrics["bounded_fraction"] == 1


def test_zero_advantage_groups_are_counted() -> None:
    policy, batch = random_batch(27)
    mixed = torch.tensor([[0.0, 0, 0, 0], [1.0, -1, 0, 0], [0.5, 0.5, -1, 0]])
    output = build_loss("grpo").loss(policy, dataclasses.replace(batch, advantages_BG=mixed))
    assert output.metrics["zero_advantage_groups"] == 1
