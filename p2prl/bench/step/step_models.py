"""Models of real architecture and vocabulary with random weights, and batches for them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from p2prl.learner.training.micro_batches import MicroBatchRule
from p2prl.learner.training.optimizer_step import TrainingGroup
from p2prl.learner.training.policy_gradient import BatchLogprobs
from p2prl.models.weight_layout import TORCH_DTYPES

VOCABULARY = 151_936
"""Qwen2's."""

MODELS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "29m": {"hidden_size": 160, "intermediate_size": 640, "num_hidden_layers": 12, "num_attention_heads": 5},
        "123m": {"hidden_size": 640, "intermediate_size": 1792, "num_hidden_layers": 6, "num_attention_heads": 10},
        "494m": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14},
    }
)
"""Shapes by name. `494m` is that of Qwen2.5-0.5B."""

_KEY_VALUE_HEADS = {"29m": 5, "123m": 2, "494m": 2}

_PROMPT_TOKENS = 16

_DRIFT_NATS = 0.1
"""Spread of the difference between policy and behavior log-probs of a token, as for rollouts some updates old."""


def step_model(name: str, *, seed: int, dtype: str = "float32") -> Any:
    """A model of this name with random weights, whose head and input embedding are one."""
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        num_key_value_heads=_KEY_VALUE_HEADS[name],
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
        **MODELS[name],
    )
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config).to(TORCH_DTYPES[dtype]).eval()


def step_batch(
    model: Any, *, groups: int, completions: int, tokens: int, rule: MicroBatchRule, seed: int
) -> list[TrainingGroup]:
    """A batch of random tokens with behavior log-probs near the model's, and rewards that differ in every group.

    Completions are between half of `tokens` and `tokens` long; the first is of full length.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, VOCABULARY, (count,), generator=generator).tolist())

    rows = []
    for _ in range(groups):
        prompt = draw(_PROMPT_TOKENS)
        for number in range(completions):
            shorter = 0 if number == 0 else int(torch.randint(0, tokens // 2 + 1, (1,), generator=generator))
            rows.append((prompt, draw(tokens - shorter)))
    logprobs_NT = BatchLogprobs(model, temperature=1.0).score(rows, rule)
    drift_NT = _DRIFT_NATS * torch.randn(logprobs_NT.shape, generator=generator)
    behavior_NT = (logprobs_NT.cpu() + drift_NT).clamp(max=0.0)
    made = []
    for first in range(0, len(rows), completions):
        part = rows[first : first + completions]
        rewards = torch.rand(completions, generator=generator).tolist()
        behavior = [row[: len(ids)].tolist() for row, (_, ids) in zip(behavior_NT[first:], part, strict=False)]
        made.append(
            TrainingGroup(
                prompt_ids=part[0][0],
                completions=tuple(ids for _, ids in part),
                behavior_logprobs=tuple(map(tuple, behavior)),
                rewards=tuple(rewards),
                staleness=1,
            )
        )
    return made
