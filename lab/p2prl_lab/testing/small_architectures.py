"""A small model of every architecture that a run is tested with."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from p2prl.models.base_model.attention import exact_attention

_ALL_HEADS_KEEP_KEYS = ("gpt2", "gpt_neox", "opt", "phi", "falcon", "deepseek_v2", "deepseek_v3")
_WINDOWED = ("gemma2", "gemma3_text", "mistral", "olmo3", "starcoder2", "cohere2", "exaone4", "gpt_oss", "vaultgemma")
_OWN_HEAD_WIDTH = ("gemma", "glm", "qwen3", "gpt_oss", "cohere2", "exaone4", "dots1", "minimax", "vaultgemma")

_ROUTED: dict[str, Any] = {
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 16,
    "first_k_dense_replace": 1, "n_shared_experts": 1,
}  # fmt: skip
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}  # fmt: skip
_LOCAL: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
_NAMED: dict[str, Any] = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
}  # fmt: skip
_OWN: dict[str, dict[str, Any]] = {
    "deepseek_v2": _ROUTED | _LATENT,
    "deepseek_v3": _ROUTED | _LATENT,
    "dots1": _ROUTED,
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 16, "moe_layer_start_index": 1},
    "flex_olmo": _NAMED,
    "glm4_moe": _ROUTED,
    "gpt_oss": _LOCAL | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "granitemoe": _LOCAL,
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_multiple_of": 16},
    "lfm2_moe": _NAMED | {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "minimax_m2": _LOCAL,
    "mixtral": _LOCAL,
    "olmoe": _NAMED,
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "qwen2_moe": _NAMED,
    "qwen3_moe": _NAMED,
    "qwen3_next": _NAMED | {
        "layer_types": ["linear_attention", "full_attention"], "linear_num_value_heads": 2, "linear_num_key_heads": 2,
        "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    },
}  # fmt: skip
"""Settings of single architectures: experts, layers of other kinds, names of their own."""


def small_config(kind: str, *, vocabulary: int = 18, context: int = 48) -> Any:
    """Two layers of 32 numbers."""
    settings: dict[str, Any] = {"vocab_size": vocabulary, "num_hidden_layers": 2, "num_attention_heads": 4}
    settings |= {"bos_token_id": vocabulary - 3, "eos_token_id": vocabulary - 2, "pad_token_id": vocabulary - 1}
    settings |= {"hidden_size": 32, "max_position_embeddings": context}
    if kind not in ("gpt2", "opt", "falcon"):
        settings |= {"intermediate_size": 48}
    if kind not in _ALL_HEADS_KEEP_KEYS:
        settings |= {"num_key_value_heads": 2}
    if kind.startswith(_OWN_HEAD_WIDTH):
        settings |= {"head_dim": 8}
    if kind in _WINDOWED:
        settings |= {"sliding_window": 4}  # shorter than every sequence here
    return AutoConfig.for_model(kind, **settings | _OWN.get(kind, {}))


def small_model(kind: str, *, vocabulary: int = 18, context: int = 48) -> Any:
    """A model of `small_config`, with weights large enough to give distinct logits."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(1)
        config = small_config(kind, vocabulary=vocabulary, context=context)
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation=exact_attention(config)
        )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(5.0)
    return model.eval()
