"""Decoders of real architectures, small enough for a test, with random weights."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from p2prl.models.logprobs.policy_forward import Row

VOCABULARY = 300


def qwen2(*, vocabulary: int = VOCABULARY, tied: bool = True, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=16,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=0,
    )
    return Qwen2ForCausalLM(config).eval()


def llama() -> Any:
    """Untied, with other norms and heads than Qwen2's, and no biases."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=1,
        tie_word_embeddings=False,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


def qwen3() -> Any:
    """Untied, with norms of queries and keys that all heads share."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=4,
        tie_word_embeddings=False,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=0,
    )
    return Qwen3ForCausalLM(config).eval()


def wide_qwen2(*, vocabulary: int = 5000, seed: int = 0) -> Any:
    """With heads and a vocabulary that fast kernels take: two and a half million parameters."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        initializer_range=0.1,
        bos_token_id=0,
        eos_token_id=0,
    )
    return Qwen2ForCausalLM(config).eval()


def gpt2(*, dropout: float = 0.0) -> Any:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=64,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config).eval()


def gemma() -> Any:
    """Its embeddings are scaled after they are looked up."""
    torch.manual_seed(0)
    config = GemmaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    return GemmaForCausalLM(config).eval()


def gemma2() -> Any:
    """Its logits pass a soft cap."""
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        attn_implementation="eager",
    )
    return Gemma2ForCausalLM(config).eval()


def rows_of(count: int, *, seed: int = 0, vocabulary: int = VOCABULARY, longest: int = 9) -> list[Row]:
    """Rows of different lengths."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> tuple[int, ...]:
        length = int(torch.randint(low, high + 1, (1,), generator=generator))
        return tuple(torch.randint(0, vocabulary, (length,), generator=generator).tolist())

    return [(draw(1, 5), draw(1, longest)) for _ in range(count)]


def gradients(model: Any) -> list[torch.Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters()]


def difference(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    """Largest difference of two gradients, by their largest entry."""
    largest = max(float(tensor.abs().max()) for tensor in other)
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True)) / largest
