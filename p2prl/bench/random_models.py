"""Models of real architecture and vocabulary with random weights, shared by the benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from p2prl.models.weight_layout import TORCH_DTYPES

VOCABULARY = 151_936
"""Qwen2's."""

CONTEXT = 32_768

SHAPES: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "29m": {
            "hidden_size": 160,
            "intermediate_size": 640,
            "num_hidden_layers": 12,
            "num_attention_heads": 5,
            "num_key_value_heads": 5,
        },
        "123m": {
            "hidden_size": 640,
            "intermediate_size": 1792,
            "num_hidden_layers": 6,
            "num_attention_heads": 10,
            "num_key_value_heads": 2,
        },
        "494m": {
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
        },
    }
)
"""Qwen2 shapes by name. `494m` is that of Qwen2.5-0.5B."""


def random_model(name: str, *, vocabulary: int = VOCABULARY, dtype: str = "float32", seed: int) -> Any:
    """A model of this name, whose head and input embedding are one, without an end token."""
    config = Qwen2Config(
        vocab_size=vocabulary,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
        **SHAPES[name],
    )
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM._from_config(config, dtype=TORCH_DTYPES[dtype], attn_implementation="sdpa").eval()
