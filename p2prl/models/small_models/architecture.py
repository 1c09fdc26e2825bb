"""The small model with random weights: Qwen3, 5.0 million parameters, of which the embedding has 4.2 million."""

from __future__ import annotations

import torch
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from p2prl.models.base_model.pretrained import LoadedModel, quiet_transformers

CONTEXT = 1024
"""Longest prompt and completion together, tokens."""


def random_small_model(tokenizer: PreTrainedTokenizerFast, *, seed: int) -> LoadedModel:
    """The model with random weights that `seed` fixes, fp32 on the CPU. Leaves torch's generator as it found it."""
    quiet_transformers()
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    return LoadedModel(model=model.eval(), tokenizer=tokenizer)
