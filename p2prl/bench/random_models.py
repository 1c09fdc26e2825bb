"""Models of real architecture and vocabulary with random weights, shared by the benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from p2prl.models.weights.layout import TORCH_DTYPES

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
        "1544m": {
            "hidden_size": 1536,
            "intermediate_size": 8960,
            "num_hidden_layers": 28,
            "num_attention_heads": 12,
            "num_key_value_heads": 2,
        },
        "7615m": {
            "hidden_size": 3584,
            "intermediate_size": 18_944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "tie_word_embeddings": False,
        },
    }
)
"""Qwen2 shapes by name. The last three are those of Qwen2.5 with half a billion, 1.5 and 7 billion parameters."""


def random_model(
    name: str,
    *,
    vocabulary: int = VOCABULARY,
    dtype: str = "float32",
    device: torch.device | None = None,
    seed: int,
) -> Qwen2ForCausalLM:
    """A model of this name, without an end token. Head and input embedding are one unless the shape says otherwise.

    It is made on the device, by default the CPU, where a large one takes minutes.
    """
    place = device or torch.device("cpu")
    config = Qwen2Config(
        vocab_size=vocabulary,
        max_position_embeddings=CONTEXT,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
        **{"tie_word_embeddings": True, **SHAPES[name]},
    )
    with torch.random.fork_rng(devices=[place] if place.type == "cuda" else ()), place:
        torch.manual_seed(seed)
        return Qwen2ForCausalLM._from_config(config, dtype=TORCH_DTYPES[dtype], attn_implementation="sdpa").eval()
