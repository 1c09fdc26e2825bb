"""An engine's completions are judged by the learner's rule, which an honest one passes and a wrong one does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import Qwen2Config

from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.engines.transformers.scorer import TransformersScorer
from p2prl.models.sampler_port import Generation, GenerationRequest
from p2prl.models.sampling import sample_all
from p2prl.models.weights.layout import flatten, layout_of
from p2prl_lab.testing.judged_groups import JudgedGroups, judge, replayed
from p2prl_lab.testing.mixed_replay import differing_tokens, mixed_scores
from p2prl_lab.testing.spread_models import spread_model

CONFIG = Qwen2Config(
    vocab_size=600,
    hidden_size=64,
    intermediate_size=160,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    tie_word_embeddings=True,
)
GROUPS = 12


def policy(seed: int, dtype: str) -> PolicyModel:
    """A policy whose weights are what its bytes say, rounded to `dtype`."""
    model = spread_model(CONFIG, seed=seed)
    layout = layout_of(model, dtype)
    weights = bytes(flatten(model, layout))
    held = PolicyModel(model.to(getattr(torch, dtype)), layout)
    held.load(weights)
    return held


def requests() -> list[GenerationRequest]:
    return [
        GenerationRequest(
            prompt_ids=tuple((number * 31 + 7 * j) % 600 for j in range(6)),
            seed=number * 0x9E37_79B9_7F4A_7C15 % 2**63,
            max_new_tokens=24,
            temperature=1.0 if number // 8 % 2 else 0.6,
            stop_ids=frozenset(),
        )
        for number in range(8 * GROUPS)
    ]


def judged(made: list[Generation], dtype: str) -> JudgedGroups:
    scorer = TransformersScorer(policy(0, dtype))
    asked = requests()
    return judge(replayed(scorer, asked, made), asked, dtype=dtype, layers=3)


def sampled(asked: list[GenerationRequest], dtype: str, held: PolicyModel | None = None) -> list[Generation]:
    return sample_all(TransformersSampler(held or policy(0, dtype)), asked)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_honest_engine_passes(dtype: str) -> None:
    result = judged(sampled(requests(), dtype), dtype)
    assert result.rejected == ()
    assert (result.groups, result.tokens) == (GROUPS, 8 * GROUPS * 24)
    assert result.differing <= 0.1 * result.tokens
    if dtype == "float32":
        assert result.differing == 0


def _another_layer(dtype: str) -> list[Generation]:
    held = policy(0, dtype)
    with torch.no_grad():
        held.model.model.layers[1].mlp.down_proj.weight.mul_(1.2)
    return sampled(requests(), dtype, held)


PLANTED: dict[str, Any] = {
    "temperature": lambda dtype: sampled(
        [replace(each, temperature=1.1 * each.temperature) for each in requests()], dtype
    ),
    "seed": lambda dtype: sampled([replace(each, seed=each.seed ^ 1) for each in requests()], dtype),
    "layer": _another_layer,
    "policy": lambda dtype: sampled(requests(), dtype, policy(1, dtype)),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("error", PLANTED)
def test_a_planted_error_is_found(error: str, dtype: str) -> None:
    result = judged(PLANTED[error](dtype), dtype)
    assert len(result.rejected) >= GROUPS // 2, result


def test_the_models_are_spread_like_trained_ones_and_read_their_context() -> None:
    model = spread_model(CONFIG, seed=0)
    with torch.no_grad():
        logits = model(input_ids=torch.arange(64)[None] * 7 % 600).logits[0]
        other = model(input_ids=(torch.arange(64)[None] * 7 % 600).index_fill(1, torch.tensor([0]), 3)).logits[0]
    assert 3.0 < float(logits.std()) < 7.0
    assert float((logits[-1] - other[-1]).abs().max()) > 0.1


@pytest.mark.parametrize(("dtype", "noise"), [("float32", 1e-4), ("bfloat16", 0.05)])
def test_scores_by_spans_are_those_of_the_scorer(dtype: str, noise: float) -> None:
    held = policy(0, dtype)
    asked = requests()[:8]
    made = [replace(each, spans=((0, 4),)) for each in sampled(asked, dtype)]
    scorer = TransformersScorer(policy(0, dtype))
    for request, generation, by_scorer in zip(asked, made, replayed(scorer, asked, made), strict=True):
        by_spans = mixed_scores({4: held.model}, request, generation)
        # A head in bfloat16 would round logits of 16 by .06 each.
        assert float(abs(by_spans.logprobs - by_scorer.logprobs).mean()) < noise
        assert by_spans.sizes == pytest.approx(by_scorer.sizes, rel=10 * noise)
        if dtype == "float32":
            assert by_spans.margins.tolist() == by_scorer.margins.tolist() == [0.0] * 24
            assert differing_tokens({4: held.model}, request, generation) == 0
