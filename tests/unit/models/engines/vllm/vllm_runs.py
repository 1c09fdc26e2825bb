"""Runs of three small policies with a tied head, and requests for them, for the tests of the vLLM sampler."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from p2prl.models.base_model.pretrained import LoadedModel
from p2prl.models.run_files.export import export_run_files
from p2prl.models.run_model import RunModel, read_run_model
from p2prl.models.sampler_port import GenerationRequest
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.weights.layout import flatten, layout_of

VOCABULARY, SEQUENCES, CONTEXT = 512, 8, 160
STOPS = frozenset(range(0, VOCABULARY, 40))


def model(seed: int) -> Any:
    """A model with a tied head, whose logits are spread like a trained model's."""
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=()), torch.no_grad():
        torch.manual_seed(seed)
        made = Qwen2ForCausalLM(config).eval()
        for parameter in made.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8.0)
        made.model.embed_tokens.weight.mul_(4.0 / made(input_ids=torch.arange(16)[None]).logits.std())
    return made


MODELS = {version: model(version) for version in range(3)}
LAYOUT = layout_of(MODELS[0], "float32")
WEIGHTS = {version: bytes(flatten(made, LAYOUT)) for version, made in MODELS.items()}


def run_model() -> RunModel:
    files = export_run_files(LoadedModel(model=MODELS[0], tokenizer=tiny_model().tokenizer))
    return read_run_model(files, layout_digest=LAYOUT.digest, weight_bytes=LAYOUT.size_bytes, dtype="float32")


def requests(count: int, *, new: int = 40, stop_ids: frozenset[int] = STOPS) -> list[GenerationRequest]:
    return [
        GenerationRequest(
            prompt_ids=tuple((5 * i // 2 + 3 * j) % VOCABULARY for j in range(3 + 40 * (i // 2 % 3))),
            seed=(i + 1) * 0xFEDC_BA98_7654_321 % 2**63,
            max_new_tokens=new + i % 3,
            temperature=1.0 if i % 2 else 0.6,
            stop_ids=stop_ids,
        )
        for i in range(count)
    ]
