"""Stages of a model: their layers and words compute what the whole does, and what cannot be cut is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from p2prl.errors import ConfigError
from p2prl.learner.training.parallel_config import ParallelConfig
from p2prl.models.logprobs.training_head import TrainingHead
from p2prl.ranks.pipeline_stages import Words, check_stages, cut
from p2prl.ranks.rank_policy import PolicySettings
from tests.unit.models.small_decoders import VOCABULARY, gemma, gemma2, gpt2, llama, qwen2

PLAIN = PolicySettings(temperature=0.7, autocast=None, zero=2)


@given(st.integers(1, 200), st.integers(1, 20))
def test_a_cut_is_even_and_later_parts_are_the_larger(count: int, parts: int) -> None:
    edges = cut(count, parts)
    assert [i for first, last in edges for i in range(first, last)] == list(range(count))
    sizes = [last - first for first, last in edges]
    assert max(sizes) - min(sizes) <= 1
    assert sizes[-1] == max(sizes)


@pytest.mark.parametrize("make", [qwen2, llama, gpt2])
@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_decoders_of_plain_layers_can_be_cut(make: Callable[[], Any], autocast: torch.dtype | None) -> None:
    check_stages(make(), ParallelConfig(plan="pp2"), PolicySettings(temperature=1.0, autocast=autocast, zero=2))


@pytest.mark.parametrize(
    ("make", "stages", "reason"),
    [
        (gemma, 2, "a gemma model computes more than its layers"),  # it scales embeddings
        (gemma2, 2, "more than a layer on its hidden states"),
        (qwen2, 3, "the model has 2 layers, fewer than the plan has stages"),
    ],
)
def test_what_cannot_be_cut_is_refused_by_name(make: Callable[[], Any], stages: int, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"pp{stages} cannot be: .*{reason}") as refused:
        check_stages(make(), ParallelConfig(plan=f"pp{stages}"), PLAIN)
    assert "dp deals the rows of any model" in (refused.value.remedy or "")


@pytest.mark.parametrize("tied", [True, False])
def test_words_of_all_stages_are_the_head_and_the_embedding(tied: bool) -> None:
    model = qwen2(tied=tied)
    width = model.config.hidden_size
    generator = torch.Generator().manual_seed(3)
    hidden_MH = torch.randn(40, width, generator=generator, requires_grad=True)
    tokens_M = torch.randint(0, VOCABULARY, (40,), generator=generator)
    coefficients_M = torch.randn(40, generator=generator)
    whole = TrainingHead(model.get_output_embeddings().weight, None, PLAIN.temperature, torch.float32)
    logprobs_M, normalizers_M = whole.logprobs(hidden_MH, tokens_M)

    parts = [Words(model, first, last, PLAIN) for first, last in cut(VOCABULARY, 3)]
    embedded = sum(part(tokens_M)[0] for part in parts)
    assert torch.equal(embedded, model.get_input_embeddings()(tokens_M))
    with torch.no_grad():
        logits, sums = zip(*(part(tokens_M, hidden_MH) for part in parts), strict=True)
    assert torch.allclose(torch.stack(sums).logsumexp(dim=0), normalizers_M, atol=1e-5)
    assert torch.allclose(sum(logits) - normalizers_M, logprobs_M, atol=1e-5)

    wanted_MH, wanted_VH, _ = whole.gradients(hidden_MH, tokens_M, normalizers_M, coefficients_M)
    for part in parts:
        torch.autograd.backward(part(tokens_M, hidden_MH, normalizers_M)[0], coefficients_M)
    assert hidden_MH.grad is not None
    assert torch.allclose(hidden_MH.grad, wanted_MH, atol=1e-5)
    heads = [part.embedding if part.own_head is None else part.own_head for part in parts]
    assert wanted_VH is not None
    assert torch.allclose(torch.cat([head.grad for head in heads if head.grad is not None]), wanted_VH, atol=1e-5)
