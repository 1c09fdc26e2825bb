"""The stacked decoder against transformers' GPT-2 and against itself."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from p2prl.errors import ConfigError, LocalProtocolError
from p2prl_lab.bench.training.decoder_shape import DecoderShape, initial_weights
from p2prl_lab.bench.training.stacked_decoder import _Distinct, completion_logprobs, completion_values
from p2prl_lab.bench.training.stacked_sampling import sample

SHAPE = DecoderShape(vocabulary=11, context=14, width=12, feedforward=20, layers=2, heads=3)
POLICIES, PROMPTS, GROUP, PROMPT_TOKENS, TOKENS = 3, 2, 4, 5, 6
END = 9


def transformers_model(weights: Tensor) -> Any:
    """GPT2LMHeadModel in float64 holding one row of weights, by name."""
    config = GPT2Config(
        vocab_size=SHAPE.vocabulary, n_positions=SHAPE.context, n_embd=SHAPE.width, n_inner=SHAPE.feedforward,
        n_layer=SHAPE.layers, n_head=SHAPE.heads, activation_function="relu", resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).double().eval()
    named = dict(model.transformer.named_parameters())
    assert set(named) == set(SHAPE.layout())
    offset = 0
    for name, size in SHAPE.layout().items():
        count = math.prod(size)
        with torch.no_grad():
            named[name].copy_(weights[offset : offset + count].view(size))
        offset += count
    return model


def random_case() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    weights = torch.stack([initial_weights(SHAPE, seed) for seed in range(POLICIES)]).double()
    weights = weights + 0.05 * torch.randn(weights.shape, generator=generator, dtype=torch.float64)
    prompts = torch.randint(SHAPE.vocabulary, (POLICIES, PROMPTS, PROMPT_TOKENS), generator=generator)
    completions = torch.randint(SHAPE.vocabulary, (POLICIES, PROMPTS, GROUP, TOKENS), generator=generator)
    return weights, prompts, completions


def logprobs_by_transformers(model: Any, prompt: Tensor, completion: Tensor) -> Tensor:
    ids = torch.cat([prompt, completion]).unsqueeze(0)
    logits = model(input_ids=ids).logits[0, PROMPT_TOKENS - 1 : -1]
    return torch.log_softmax(logits, dim=-1).gather(-1, completion.unsqueeze(-1)).squeeze(-1)


@pytest.fixture(autouse=True)
def _float64() -> Any:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def test_logprobs_and_gradients_are_those_of_transformers() -> None:
    weights, prompts, completions = random_case()
    weights.requires_grad_()
    logprobs = completion_logprobs(SHAPE, weights, prompts, completions)
    coefficients = torch.randn(logprobs.shape, generator=torch.Generator().manual_seed(1))
    (coefficients * logprobs).sum().backward()  # type: ignore[no-untyped-call]
    assert weights.grad is not None
    for m in range(POLICIES):
        model = transformers_model(weights[m].detach())
        total = torch.zeros(())
        for b in range(PROMPTS):
            for g in range(GROUP):
                expected = logprobs_by_transformers(model, prompts[m, b], completions[m, b, g])
                torch.testing.assert_close(logprobs[m, b, g].detach(), expected.detach(), rtol=0, atol=1e-10)
                total = total + (coefficients[m, b, g] * expected).sum()
        total.backward()  # type: ignore[no-untyped-call]
        named = dict(model.transformer.named_parameters())
        expected_gradient = torch.cat([named[name].grad.flatten() for name in SHAPE.layout()])
        torch.testing.assert_close(weights.grad[m], expected_gradient, rtol=0, atol=1e-9)


def repeated_case() -> tuple[Tensor, Tensor, Tensor]:
    """Equal completions of one prompt, of two prompts, and of different numbers in each policy."""
    weights, prompts, completions = random_case()
    completions[0, 0] = completions[0, 1, :1]
    completions[1, :, 2:] = completions[1, :, :2]
    prompts[2, 1] = prompts[2, 0]
    completions[2, 1, 0] = completions[2, 0, 3]
    return weights, prompts, completions


def test_equal_completions_are_computed_once_and_count_as_often_as_they_occur() -> None:
    """Against every completion scored on its own, after a prompt of its own."""
    weights, prompts, completions = repeated_case()
    assert _Distinct.of(completions).tokens_MRT.shape[1] == PROMPTS * GROUP
    assert _Distinct.of(completions[:2]).tokens_MRT.shape[1] == 1 + GROUP, "the policy with the most"
    assert _Distinct.of(completions[1:2]).tokens_MRT.shape[1] == 4
    coefficients = torch.randn(completions.shape, generator=torch.Generator().manual_seed(1))
    own_prompts = prompts.repeat_interleave(GROUP, dim=1)
    found = []
    for case in ((prompts, completions), (own_prompts, completions.reshape(POLICIES, -1, 1, TOKENS))):
        leaf = weights.clone().requires_grad_()
        logprobs = completion_logprobs(SHAPE, leaf, *case).view(completions.shape)
        (gradient,) = torch.autograd.grad((coefficients * logprobs).sum(), leaf)
        found.append((logprobs.detach(), gradient))
    torch.testing.assert_close(*found, rtol=0, atol=1e-10)
    assert torch.equal(found[0][0][0, 0, 0], found[0][0][0, 0, 3])


def test_values_depend_on_earlier_tokens_only() -> None:
    """Against transformers' features, and their gradient against finite differences."""
    weights, prompts, completions = random_case()
    shape = dataclasses.replace(SHAPE, value_head=True)
    head = torch.randn(POLICIES, SHAPE.width + 1, generator=torch.Generator().manual_seed(6))
    with_head = torch.cat([weights, head], dim=1).requires_grad_()
    logprobs, values = completion_values(shape, with_head, prompts, completions)
    assert torch.equal(logprobs, completion_logprobs(SHAPE, weights, prompts, completions))
    for m in range(POLICIES):
        model = transformers_model(weights[m]).transformer
        for b, g in [(b, g) for b in range(PROMPTS) for g in range(GROUP)]:
            ids = torch.cat([prompts[m, b], completions[m, b, g]]).unsqueeze(0)
            features = model(input_ids=ids).last_hidden_state[0, PROMPT_TOKENS - 1 : -1]
            expected = features @ head[m, :-1] + head[m, -1]
            torch.testing.assert_close(values[m, b, g].detach(), expected.detach(), rtol=0, atol=1e-10)
    (gradient,) = torch.autograd.grad(values.square().sum(), with_head)
    for place in (0, 333, SHAPE.size() - 1, SHAPE.size(), shape.size() - 1):
        nudged = []
        for sign in (1, -1):
            moved = with_head.detach().clone()
            moved[1, place] += sign * 1e-6
            nudged.append(completion_values(shape, moved, prompts, completions)[1].square().sum().item())
        assert gradient[1, place].item() == pytest.approx((nudged[0] - nudged[1]) / 2e-6, rel=1e-5, abs=1e-7)


def test_a_value_head_comes_last_and_begins_at_zero() -> None:
    shape = dataclasses.replace(SHAPE, value_head=True)
    assert shape.size() == SHAPE.size() + SHAPE.width + 1
    row = initial_weights(shape, 3)
    assert torch.equal(row[: SHAPE.size()], initial_weights(SHAPE, 3))
    assert row[SHAPE.size() :].count_nonzero() == 0
    weights, prompts, completions = random_case()
    with pytest.raises(LocalProtocolError, match="value head"):
        completion_values(SHAPE, weights, prompts, completions)


def test_samples_carry_the_logprobs_that_scoring_gives_them() -> None:
    weights, prompts, _ = random_case()
    generator = torch.Generator().manual_seed(2)
    made = sample(
        SHAPE, weights, prompts, group_size=GROUP, max_new_tokens=8, end_token=END,
        uniforms=lambda size: torch.rand(size, generator=generator),
    )  # fmt: skip
    scored = completion_logprobs(SHAPE, weights, prompts, made.tokens_MBGT)
    torch.testing.assert_close(torch.where(made.mask_MBGT, scored, 0.0), made.logprobs_MBGT, rtol=0, atol=1e-10)
    for tokens, mask, finished in zip(
        made.tokens_MBGT.flatten(0, 2).tolist(),
        made.mask_MBGT.flatten(0, 2).tolist(),
        made.finished_MBG.flatten().tolist(),
        strict=True,
    ):
        assert finished == (END in tokens)
        length = tokens.index(END) + 1 if finished else len(tokens)
        assert mask == [True] * length + [False] * (len(tokens) - length)
    lengths = made.mask_MBGT.sum(-1)
    assert int(lengths.min()) < int(lengths.max())


def test_samples_are_those_of_transformers_with_the_same_noise() -> None:
    """Token by token, without a cache: completions that are equal for a while and then part, and greedy ones."""
    weights, prompts, _ = random_case()
    weights = weights * torch.tensor([[1.0], [2.0], [12.0]])  # the last is nearly certain, so that it repeats itself
    generator, limit = torch.Generator().manual_seed(4), 8
    noise: list[Tensor] = []

    def uniforms(size: tuple[int, ...]) -> Tensor:
        noise.append(torch.rand(size, generator=generator))
        return noise[-1]

    made = sample(
        SHAPE, weights, prompts, group_size=GROUP, max_new_tokens=limit, end_token=END, uniforms=uniforms,
        entropies=True, greedy_last=True,
    )  # fmt: skip
    assert noise[0].shape == (POLICIES, PROMPTS, GROUP - 1, SHAPE.vocabulary)
    assert made.entropies_MBGT is not None
    for m, b, g in [(m, b, g) for m in range(POLICIES) for b in range(PROMPTS) for g in range(GROUP)]:
        model, tokens = transformers_model(weights[m]), list[int]()
        while len(tokens) < limit and END not in tokens:
            ids = torch.cat([prompts[m, b], torch.tensor(tokens, dtype=torch.int64)]).unsqueeze(0)
            logits = model(input_ids=ids).logits[0, -1].detach()
            gumbel = -torch.log(-torch.log(noise[len(tokens)][m, b, g])) if g < GROUP - 1 else torch.zeros(())
            every = logits.log_softmax(-1)
            token = int((logits + gumbel).argmax())
            place = (m, b, g, len(tokens))
            assert float(made.logprobs_MBGT[place]) == pytest.approx(float(every[token]), abs=1e-10)
            assert float(made.entropies_MBGT[place]) == pytest.approx(float(-(every.exp() * every).sum()), abs=1e-10)
            tokens.append(token)
        assert made.tokens_MBGT[m, b, g][made.mask_MBGT[m, b, g]].tolist() == tokens
    texts = [tuple(row) for row in made.tokens_MBGT[2].flatten(0, 1).tolist()]
    assert 1 < len(set(texts)) < len(texts)


def test_samples_follow_the_distribution_of_the_policy() -> None:
    weights, prompts, _ = random_case()
    generator = torch.Generator().manual_seed(3)
    draws = 4000
    made = sample(
        SHAPE, weights[:1], prompts[:1, :1], group_size=draws, max_new_tokens=1, end_token=END,
        uniforms=lambda size: torch.rand(size, generator=generator),
    )  # fmt: skip
    model = transformers_model(weights[0])
    probabilities = model(input_ids=prompts[0, :1]).logits[0, -1].softmax(-1).detach()
    counts = torch.bincount(made.tokens_MBGT.flatten(), minlength=SHAPE.vocabulary).double()
    chi2 = ((counts - draws * probabilities) ** 2 / (draws * probabilities)).sum()
    assert float(chi2) < 29.6  # the .999 quantile at 10 degrees of freedom


def test_initial_weights_depend_on_the_seed() -> None:
    assert torch.equal(initial_weights(SHAPE, 1), initial_weights(SHAPE, 1))
    assert not torch.equal(initial_weights(SHAPE, 1), initial_weights(SHAPE, 2))
    assert DecoderShape(vocabulary=18, context=32).size() == 59_040


def test_wrong_sizes_are_refused() -> None:
    weights, prompts, completions = random_case()
    with pytest.raises(LocalProtocolError, match="weights"):
        completion_logprobs(SHAPE, weights[:, 1:], prompts, completions)
    with pytest.raises(ConfigError, match="context"):
        sample(
            SHAPE, weights, prompts, group_size=1, max_new_tokens=10, end_token=END, uniforms=lambda s: torch.rand(s)
        )
    with pytest.raises(ConfigError, match="heads"):
        DecoderShape(vocabulary=3, context=3, width=10, heads=3)
