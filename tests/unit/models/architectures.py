"""A small model of every architecture that a run may use."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from p2prl.models.base_model.attention import exact_attention


def small_model(kind: str) -> Any:
    """Two layers and 18 words, with weights large enough to give distinct logits."""
    settings: dict[str, Any] = {"vocab_size": 18, "bos_token_id": 15, "eos_token_id": 16, "pad_token_id": 17}
    settings |= {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 48}
    if kind == "opt":
        settings |= {"ffn_dim": 48, "word_embed_proj_dim": 32}
    elif kind != "gpt2":
        settings |= {"intermediate_size": 48}
    if kind not in ("gpt2", "opt", "gpt_neox", "phi"):
        settings |= {"num_key_value_heads": 2}
    if kind.startswith(("gemma", "glm", "qwen3")):
        settings |= {"head_dim": 8}
    if kind in ("gemma2", "gemma3_text", "mistral", "olmo3", "starcoder2"):
        settings |= {"sliding_window": 4}  # shorter than every sequence here
    if kind.endswith("moe"):
        settings |= {"num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
        settings |= {"num_experts_per_tok": 2}
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(1)
        config = AutoConfig.for_model(kind, **settings)
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation=exact_attention(config)
        )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(5.0)
    return model.eval()
