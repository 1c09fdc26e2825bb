"""Evaluations against sampling and scoring one prompt at a time."""

from __future__ import annotations

import pytest
import torch

from p2prl_lab.bench.staleness.policy_evaluation import evaluate
from p2prl_lab.bench.training.environments import environment_by_name
from p2prl_lab.bench.training.stacked_decoder import StackedDecoder, completion_logprobs
from p2prl_lab.bench.training.stacked_sampling import sample
from p2prl_lab.bench.training.warm_start import warm_start

ENVIRONMENT = environment_by_name("chain4")


@pytest.fixture(scope="module")
def weights() -> torch.Tensor:
    return warm_start(ENVIRONMENT, range(2), steps=40)


def next_logits(weights: torch.Tensor, prompt: str, tokens: list[int]) -> torch.Tensor:
    """Logits after a prompt and some tokens, from the whole sequence and no cache."""
    decoder = StackedDecoder(ENVIRONMENT.shape, weights)
    prompts = torch.tensor([[ENVIRONMENT.prompt_tokens(prompt) + tokens]])
    return decoder.logits(decoder.prefix(prompts).last_MBD)[0, 0]


def test_greedy_decoding_takes_the_likeliest_token_and_entropy_is_of_its_distribution(weights: torch.Tensor) -> None:
    prompt = ENVIRONMENT.task.prompt(7)
    done = sample(
        ENVIRONMENT.shape, weights[:1], torch.tensor([[ENVIRONMENT.prompt_tokens(prompt)]]), group_size=1,
        max_new_tokens=8, end_token=ENVIRONMENT.end_token, uniforms=None, entropies=True,
    )  # fmt: skip
    assert done.entropies_MBGT is not None
    tokens = done.tokens_MBGT[0, 0, 0][done.mask_MBGT[0, 0, 0]].tolist()
    for position, token in enumerate(tokens):
        logits = next_logits(weights[:1], prompt, tokens[:position])
        assert int(logits.argmax()) == token
        entropy = float(-(logits.softmax(-1) * logits.log_softmax(-1)).sum())
        assert float(done.entropies_MBGT[0, 0, 0, position]) == pytest.approx(entropy, abs=1e-4)
    assert not done.entropies_MBGT[~done.mask_MBGT].any()


def test_measures_are_means_over_fresh_prompts(weights: torch.Tensor) -> None:
    both = evaluate(ENVIRONMENT, weights, [0, 1], update=3, prompts=24)
    (alone,) = evaluate(ENVIRONMENT, weights[1:], [1], update=3, prompts=24)
    for name in ("sampled", "greedy", "pass_at_8", "length", "finished"):
        assert getattr(both[1], name) == pytest.approx(getattr(alone, name), abs=1e-6)
    prompts = [ENVIRONMENT.task.prompt((1 << 62) + (1 << 40) + 3 * (1 << 16) + i) for i in range(24)]
    rewards = []
    for prompt in prompts:
        tokens: list[int] = []
        while len(tokens) < 8 and ENVIRONMENT.end_token not in tokens:
            tokens.append(int(next_logits(weights[1:], prompt, tokens).argmax()))
        rewards.append(ENVIRONMENT.reward(prompt, tokens, tokens[-1] == ENVIRONMENT.end_token))
    assert alone.greedy == pytest.approx(sum(rewards) / 24)
    assert alone.update == 3
    assert 0 < alone.entropy < 3.2
    assert 0 < alone.nll < 3.2
    assert 1 <= alone.length <= 8


def test_a_policy_that_is_sure_and_right_is_calibrated(weights: torch.Tensor) -> None:
    """Weights scaled up make every distribution certain: entropy and NLL vanish, and the error is 1 − greedy."""
    certain = weights[:1] * 40
    (measured,) = evaluate(ENVIRONMENT, certain, [0], update=0, prompts=16)
    assert measured.entropy < 0.01
    assert measured.nll < 0.01
    assert measured.calibration == pytest.approx(1 - measured.greedy, abs=0.02)
    assert measured.sampled == pytest.approx(measured.greedy, abs=0.07)


def test_weights_that_are_not_finite_give_a_storable_record(weights: torch.Tensor) -> None:
    (measured,) = evaluate(ENVIRONMENT, torch.full_like(weights[:1], torch.nan), [0], update=0, prompts=8)
    assert measured.entropy == 1e300
    assert measured.sampled == 0.0


def test_log_probabilities_of_greedy_completions_are_the_policys(weights: torch.Tensor) -> None:
    prompts = torch.tensor([[ENVIRONMENT.prompt_tokens(ENVIRONMENT.task.prompt(seed)) for seed in range(4)]])
    done = sample(
        ENVIRONMENT.shape, weights[:1], prompts, group_size=1, max_new_tokens=8, end_token=ENVIRONMENT.end_token,
        uniforms=None,
    )  # fmt: skip
    expected = completion_logprobs(ENVIRONMENT.shape, weights[:1], prompts, done.tokens_MBGT)
    torch.testing.assert_close(done.logprobs_MBGT, torch.where(done.mask_MBGT, expected, 0.0), rtol=0, atol=2e-5)
    assert done.entropies_MBGT is None
