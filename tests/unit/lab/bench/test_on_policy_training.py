"""On-policy training: batches, references, and the source of completions."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from torch import Tensor

from p2prl.algorithms.reward_spec import parse_reward
from p2prl.errors import ConfigError
from p2prl_lab.bench.comparison.on_policy_training import OnPolicyTraining
from p2prl_lab.bench.comparison.recipes import parse_recipe
from p2prl_lab.bench.training.environments import environment_by_name
from p2prl_lab.bench.training.stacked_decoder import completion_logprobs
from p2prl_lab.bench.training.training_plan import TrainingPlan
from p2prl_lab.bench.training.warm_start import warm_start

ENVIRONMENT = environment_by_name("chain4")
PLAN = TrainingPlan(updates=3, evaluate_every=1, evaluation_prompts=16, final_prompts=32, learning_rate=2e-3)


@functools.cache
def learned() -> Tensor:
    """Two seeds that have begun to learn: fresh ones never end a completion."""
    return warm_start(ENVIRONMENT, range(2), steps=60)


def training(recipe: str, reward: str = "success", seeds: range = range(2)) -> OnPolicyTraining:
    start = learned()[seeds.start : seeds.stop]
    parsed = parse_recipe(recipe, max_completion_tokens=ENVIRONMENT.max_new_tokens)
    return OnPolicyTraining(ENVIRONMENT, parsed, parse_reward(reward), PLAN, seeds, start)


def test_credit_is_the_discounted_reward_with_a_zero_value_head() -> None:
    """δ_t is 0 before the end, so that A_t = λ^(L−1−t) · R: worked out from the tokens alone."""
    made = training("ppo:normalise=off:lambda=0.7", "2*success")
    batch = made._batch(0)
    assert batch.returns_MBGT is not None
    seen = set()
    for index, rollouts in enumerate(batch.rollouts):
        assert rollouts.token_advantages_BGT is not None
        for b in range(16):
            for g in range(8):
                length = int(rollouts.mask_BGT[b, g].sum())
                reward = 2.0 * float(
                    _right(made, index, b, batch.completions.tokens_MBGT[index, b, g, :length].tolist())
                )
                seen.add(reward)
                expected = [0.7 ** (length - 1 - t) * reward for t in range(length)]
                assert rollouts.token_advantages_BGT[b, g, :length].tolist() == pytest.approx(expected, abs=1e-5)
                assert batch.returns_MBGT[index, b, g, :length].tolist() == pytest.approx(expected, abs=1e-5)
    assert seen == {0.0, 2.0}


def _right(made: OnPolicyTraining, index: int, b: int, tokens: list[int]) -> bool:
    prompt = ENVIRONMENT.task.prompt(made._seeds[index] * (1 << 40) + b)
    return ENVIRONMENT.reward(prompt, tokens, tokens[-1] == ENVIRONMENT.end_token) == 1.0


def test_normalized_advantages_of_each_seed() -> None:
    for rollouts in training("ppo")._batch(0).rollouts:
        assert rollouts.token_advantages_BGT is not None
        on = rollouts.token_advantages_BGT[rollouts.mask_BGT]
        assert float(on.mean()) == pytest.approx(0.0, abs=1e-5)
        assert float(on.std(unbiased=False)) == pytest.approx(1.0, abs=1e-4)


def test_the_first_step_learns_policy_and_value() -> None:
    made = training("ppo", seeds=range(1))
    start = made._weights_MW.detach().clone()
    made._step(made._batch(0))
    moved = (made._weights_MW.detach() != start)[0]
    assert moved[: ENVIRONMENT.shape.size()].float().mean() > 0.5
    assert bool(moved[ENVIRONMENT.shape.size() :].all())
    frozen = training("ppo:value=0", seeds=range(1))
    frozen._step(frozen._batch(0))
    assert frozen._weights_MW.detach()[0, ENVIRONMENT.shape.size() :].count_nonzero() == 0


@pytest.mark.parametrize("loss", ["dpo", "ppo"])
def test_references_are_none_the_start_or_an_average(loss: str) -> None:
    for kind in ("none", "start", "ema"):
        made = training(f"{loss}:reference={kind}:rate=0.25", seeds=range(1))
        start = made._start_MW.clone()
        made.run()
        batch = made._batch(3)
        held = batch.rollouts[0].reference_logprobs_BGT
        if kind == "none":
            assert held is None
            continue
        assert held is not None
        expected = start.clone()
        if kind == "start":
            assert torch.equal(made._reference_MW, start)
        else:
            distance = float((made._reference_MW - start).norm() / (made._weights_MW.detach() - start).norm())
            assert 0.25 < distance < 1 - 0.75**3 + 0.2  # three batches have been taken in
            expected = made._reference_MW
        scored = completion_logprobs(made._shape, expected, batch.prompts_MBP, batch.completions.tokens_MBGT)
        torch.testing.assert_close(held, scored[0])


def test_completions_come_from_the_policy_or_from_the_start() -> None:
    own, old = training("dpo", seeds=range(1)), training("dpo:samples=start", seeds=range(1))
    first = own._batch(0).completions.tokens_MBGT
    assert torch.equal(first, old._batch(0).completions.tokens_MBGT)
    for made in (own, old):
        made.run()
    again = training("dpo", seeds=range(1))._batch(1)
    assert torch.equal(old._batch(1).completions.tokens_MBGT, again.completions.tokens_MBGT)
    moved = own._batch(1).completions
    assert not torch.equal(moved.logprobs_MBGT.sum(), again.completions.logprobs_MBGT.sum())


@pytest.mark.parametrize("recipe", ["ppo:reference=ema:passes=1", "dpo", "gepo_t:prompts=4"])
def test_a_seed_does_not_depend_on_other_seeds(recipe: str) -> None:
    together = training(recipe, "success+0.2*process").run()
    (alone,) = training(recipe, "success+0.2*process", range(1, 2)).run()
    assert together[1].seed == alone.seed == 1
    assert together[1].curve == alone.curve
    assert together[1].grad_norm_max == pytest.approx(alone.grad_norm_max, rel=1e-3)
    assert together[0].curve != together[1].curve
    assert [look.update for look in alone.curve] == [0, 1, 2, 3]
    assert alone.last("success") == pytest.approx(sum(look.success for look in alone.curve[1:]) / 3)
    assert all(math.isfinite(look.tokens) and 1 <= look.tokens <= 8 for look in alone.curve)


def test_only_raw_process_rewards_lengthen_completions() -> None:
    """The rewards' gradients at the very first step already disagree on what a longer completion is worth."""
    raw, refined = training("ppo", "success+process")._batch(0), training("ppo", "success+process:clip+delta")._batch(0)
    for a, b in zip(raw.rollouts, refined.rollouts, strict=True):
        lengths = a.mask_BGT.sum(-1).float().flatten()
        means = [batch.advantages_BG.flatten() for batch in (a, b)]
        slopes = [float(torch.corrcoef(torch.stack([lengths, mean]))[0, 1]) for mean in means]
        assert slopes[0] > slopes[1]


def test_illegal_seeds_are_refused() -> None:
    with pytest.raises(ConfigError, match="seed"):
        OnPolicyTraining(
            ENVIRONMENT,
            parse_recipe("ppo", max_completion_tokens=8),
            parse_reward("success"),
            PLAN,
            [-1],
            learned()[:1],
        )
