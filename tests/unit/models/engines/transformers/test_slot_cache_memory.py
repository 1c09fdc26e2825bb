"""Memory of the slot cache when the lengths of completions change: allocated bytes stay within the grant."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.engines.transformers.slot_decoder import SlotDecoder
from p2prl.models.sampler_port import Generation, GenerationRequest, Ticket
from p2prl.models.weights.layout import layout_of

GRANTED = 4_000_000
TOKEN_BYTES = 2 * 2 * 2 * 16 * 4
"""Layers, keys and values, heads, width and bytes of a number: 512."""

ROW_BYTES = 1_504 * TOKEN_BYTES
SHORT, LONG = 64, 4
"""Completions of either length."""


@pytest.fixture(scope="module")
def policy() -> PolicyModel:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(3)
        config = Qwen2Config(
            vocab_size=18, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=2, max_position_embeddings=2_048, bos_token_id=15, eos_token_id=16, pad_token_id=17,
        )  # fmt: skip
        model = Qwen2ForCausalLM(config)
    return PolicyModel(model, layout_of(model, "float32"))


def requests(count: int, prompt: int, new: int) -> list[GenerationRequest]:
    return [
        GenerationRequest(
            prompt_ids=tuple((seed + place) % 15 for place in range(prompt)),
            seed=seed,
            max_new_tokens=new,
            temperature=1.0,
            stop_ids=frozenset(),
        )
        for seed in range(count)
    ]


def allocated(sampler: TransformersSampler) -> int:
    """Bytes of keys and values that the decoder holds."""
    decoder = sampler._decoder
    assert isinstance(decoder, SlotDecoder)
    model = decoder._model
    return model.rows * model.columns * model.token_bytes


def sample(
    policy: PolicyModel, lots: list[list[GenerationRequest]], *, granted: int, at_once: bool
) -> tuple[list[Generation], int]:
    """Completions of several lots, and the most bytes allocated. A lot follows after some steps or after the end."""
    weights = sum(parameter.nbytes for parameter in policy.model.parameters())
    sampler = TransformersSampler(policy, memory_bytes=weights + granted)
    ended: dict[Ticket, Generation] = {}
    tickets: list[Ticket] = []
    most = 0
    for lot in lots:
        tickets += sampler.submit(lot)
        left = 3 if at_once else 10_000
        while left and len(ended) < len(tickets):
            ended.update(sampler.step().ended)
            most, left = max(most, allocated(sampler)), left - 1
    while len(ended) < len(tickets):
        ended.update(sampler.step().ended)
        most = max(most, allocated(sampler))
    return [ended[ticket] for ticket in tickets], most


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("longest_first", [False, True])
def test_long_completions_do_not_widen_the_rows_of_short_ones(
    policy: PolicyModel, longest_first: bool, at_once: bool
) -> None:
    lots = [requests(SHORT, 4, 12), requests(LONG, 1_500, 4)]
    lots = lots[::-1] if longest_first else lots
    made, most = sample(policy, lots, granted=GRANTED, at_once=at_once)
    assert LONG * ROW_BYTES <= most <= GRANTED + ROW_BYTES
    alone = [sample(policy, [lot], granted=100 * GRANTED, at_once=False)[0] for lot in lots]
    assert [generation.token_ids for generation in made] == [each.token_ids for lot in alone for each in lot]
