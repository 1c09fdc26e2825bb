"""The sets of methods, the ablated loss against the losses it comes from, and VCPO's baseline in the training loop."""

from __future__ import annotations

import dataclasses
import functools
import math
import tomllib

import pytest
import torch
from torch import Tensor

from p2prl.algorithms.batch import RolloutBatch
from p2prl.algorithms.loss_registry import BUILTIN_LOSSES
from p2prl.algorithms.reward_spec import parse_reward
from p2prl.config.new_run import RunSettings
from p2prl.config.presets import PRESETS, preset_by_name
from p2prl.config.toml_tables import parse
from p2prl.errors import ConfigError
from p2prl.learner.training.loss_pipeline import LossPipelineConfig
from p2prl.protocol.manifests import Sampling
from p2prl_lab.bench.staleness.delay_laws import parse_law
from p2prl_lab.bench.staleness.delayed_training import DelayedTraining
from p2prl_lab.bench.staleness.method_sets import ABLATIONS, NAMED, RIVALS, expanded
from p2prl_lab.bench.staleness.methods import parse_method
from p2prl_lab.bench.staleness.score_norms import score_norms
from p2prl_lab.bench.staleness.seed_log import SeedResult
from p2prl_lab.bench.training.environments import environment_by_name
from p2prl_lab.bench.training.stacked_decoder import completion_logprobs
from p2prl_lab.bench.training.training_plan import TrainingPlan
from p2prl_lab.bench.training.warm_start import warm_start
from tests.unit.algorithms.batches import random_batch

ENVIRONMENT = environment_by_name("chain4")
PLAN = TrainingPlan(updates=3, evaluate_every=1, evaluation_prompts=16, final_prompts=16, learning_rate=2e-3)


def gradient(method: str, policy: Tensor, batch: RolloutBatch) -> Tensor:
    objective = parse_method(method, max_completion_tokens=8).objective
    return torch.autograd.grad(objective.loss(policy, batch).loss, policy)[0]


def test_sets_are_written_out_in_order_and_once() -> None:
    assert expanded(["grpo", "tis:cap=3+brake"]) == ("grpo", "tis:cap=3+brake")
    assert expanded(["default+lr=0.0001"]) == ("topr:negative_high=0.25+amsgrad+lr=0.0001",)
    assert expanded(["only_nll", "grpo", "grpo"]) == ("ablated:expectation=none:cap=2:taper=none", "grpo")
    both = expanded(["ablations", "rivals", "ablated"])
    assert both[: len(ABLATIONS)] == tuple(NAMED[name] for name in ABLATIONS)
    assert len(set(both)) == len(both) == len(ABLATIONS) + len(RIVALS)
    assert set(BUILTIN_LOSSES) - set(RIVALS) == {"gepo_t", "gex", "reinforce", "ppo", "dpo"}
    for method in both:
        parse_method(method, max_completion_tokens=8)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("full", "gepo_t:sharpness=1"), ("without_nll", "gepo_t"), ("nothing", "reinforce"), ("only_taper", "topr"),
        ("with_token_taper", "gepo_t:sharpness=1:taper=token"), ("only_expectation", "gepo"),
        ("with_geometric_taper", "gepo_t:sharpness=1:taper=geometric"), ("without_cap", "gepo_t:sharpness=1:cap=1e9"),
        ("only_nll", "asympo:advantage=mean"), ("without_expectation", "topr:sharpness=1"),
    ],
)  # fmt: skip
def test_parts_of_the_default_are_the_losses_they_come_from(name: str, known: str) -> None:
    policy, batch = random_batch(3, spread=0.8)
    torch.testing.assert_close(
        gradient(NAMED[name], policy, batch), gradient(known, policy, batch), rtol=1e-10, atol=1e-12
    )


def test_every_ablation_changes_the_default() -> None:
    policy, batch = random_batch(4, spread=1.2)
    shift = torch.tensor([1.5, 0.0, 0.0], dtype=torch.float64).view(3, 1, 1)  # so that the cap binds somewhere
    batch = dataclasses.replace(batch, behavior_logprobs_BGT=batch.behavior_logprobs_BGT - shift)
    gradients = [gradient(NAMED[name], policy, batch) for name in ABLATIONS if "brake" not in name]
    for index, one in enumerate(gradients):
        for other in gradients[index + 1 :]:
            assert not torch.allclose(one, other, rtol=1e-3, atol=0)


def test_positives_keep_their_weight_without_a_taper_and_negatives_too() -> None:
    policy, batch = random_batch(5, spread=1.2)
    weights = parse_method("ablated:taper=none:sharpness=0", max_completion_tokens=8).objective.loss(policy, batch)
    mask = batch.mask_BGT
    likely = torch.where(mask, policy.detach(), 0.0).sum(-1) / mask.sum(-1)
    sampled = (torch.where(mask, batch.behavior_logprobs_BGT, 0.0).sum(-1) / mask.sum(-1)).exp()
    expectation = sampled.square().sum(-1, keepdim=True) / sampled.sum(-1, keepdim=True)
    expected = (likely.exp() / expectation).clamp(max=2.0).unsqueeze(-1) * mask
    torch.testing.assert_close(weights.weights_BGT, expected)


@pytest.mark.parametrize("setting", ["cap=0", "taper=tokens", "expectation=own", "sharpness=2"])
def test_switches_are_checked(setting: str) -> None:
    with pytest.raises(ConfigError, match=setting.split("=", maxsplit=1)[0]):
        parse_method(f"ablated:{setting}", max_completion_tokens=8)


@functools.cache
def start() -> Tensor:
    return warm_start(ENVIRONMENT, range(2), steps=40)


def test_score_norms_are_the_gradient_of_each_completion() -> None:
    weights = start()[0]
    generator = torch.Generator().manual_seed(2)
    prompts = torch.tensor([ENVIRONMENT.prompt_tokens(ENVIRONMENT.task.prompt(i)) for i in range(2)])
    tokens = torch.randint(0, ENVIRONMENT.shape.vocabulary, (2, 3, 5), generator=generator)
    mask = torch.arange(5) < torch.tensor([[5, 1, 3], [2, 4, 5]]).unsqueeze(-1)
    found = score_norms(ENVIRONMENT.shape, weights, prompts, tokens, mask)
    leaf = weights.unsqueeze(0).clone().requires_grad_()
    logprobs = completion_logprobs(ENVIRONMENT.shape, leaf, prompts.unsqueeze(0), tokens.unsqueeze(0))[0]
    for b in range(2):
        for i in range(3):
            (score,) = torch.autograd.grad(logprobs[b, i][mask[b, i]].sum(), leaf, retain_graph=True)
            assert float(found[b, i]) == pytest.approx(float(score.norm()), rel=1e-4)


def trained(method: str, seeds: range) -> list[SeedResult]:
    parsed = parse_method(method, max_completion_tokens=ENVIRONMENT.max_new_tokens)
    weights = start()[seeds.start :]
    return DelayedTraining(ENVIRONMENT, parsed, parse_law("unif:2"), PLAN, seeds, weights).run()


@pytest.mark.parametrize(
    "method", [NAMED["full_vcpo"], "oapl", "clip_cov:share=.2:cov_low=.01", "m2po_clip", "normalized_tis"]
)
def test_losses_that_see_a_whole_batch_see_one_seeds_only(method: str) -> None:
    together, alone = trained(method, range(2)), trained(method, range(1, 2))
    assert together[1].curve("sampled") == alone[0].curve("sampled")
    assert together[1].grad_norm_max == pytest.approx(alone[0].grad_norm_max, rel=1e-3)


def test_the_off_policy_optimal_baseline_replaces_the_mean() -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    log_ratios, norms = (
        torch.tensor([[0.3, -0.1, 0.0, -2.0]]).expand(2, 4),
        torch.tensor([[1.0, 2.0, 0.5, 3.0]]).expand(2, 4),
    )
    weights = [math.exp(2 * r) * n * n for r, n in zip(log_ratios[0].tolist(), norms[0].tolist(), strict=True)]
    baseline = (weights[0] + weights[3]) / sum(weights)
    lengths = torch.ones(2, 4)
    for kind, scale in (("mean", 1.0), ("mean_std", math.sqrt(1 / 3) + 1e-4)):
        method = parse_method(f"tis:advantage={kind}+opob", max_completion_tokens=8)
        found = method.advantages(rewards, lengths, log_ratios, norms)
        assert found[0].tolist() == pytest.approx([(r - baseline) / scale for r in (1, 0, 0, 1)])
        assert found[1].tolist() == [0.0] * 4
    plain = parse_method("tis", max_completion_tokens=8).advantages(rewards, lengths, log_ratios, norms)
    assert plain[0].tolist() == [0.5, -0.5, -0.5, 0.5]


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_the_default_is_what_a_run_of_a_preset_does(preset: str) -> None:
    toml = tomllib.loads(preset_by_name(preset).settings_text(updates=1))
    settings = parse(RunSettings, toml, where="run.toml")
    method = parse_method(NAMED["default"], max_completion_tokens=8)
    run = settings.loss.build(Sampling(1.0, 8, 8), parse_reward("success"))
    assert run == LossPipelineConfig(objective=method.objective)
    assert ("amsgrad" in method.additions) == settings.learner.optimizer.global_amsgrad
