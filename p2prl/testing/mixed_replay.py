"""Replay of a completion that several policies sampled: the keys and values of each stretch are its own policy's.

The scorer cannot: a group on the wire declares one policy. This loop is an oracle for samplers that swap policies while
completions are in flight.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from p2prl.models.gumbel_noise import gumbel
from p2prl.models.sampler_port import Generation, GenerationRequest


@torch.inference_mode()
def differing_tokens(models: Mapping[int, Any], request: GenerationRequest, generation: Generation) -> int:
    """Tokens of `generation` that `models`, transformers models by version, would not have drawn with its spans."""
    ids = generation.token_ids
    starts = [start for start, _ in generation.spans]
    if starts[0] != 0:
        return len(ids)
    cache: DynamicCache | None = None
    fed, differing = list(request.prompt_ids), 0
    for (start, version), end in zip(generation.spans, [*starts[1:], len(ids)], strict=True):
        model = models[version]
        cache = cache or DynamicCache(config=model.config)
        fed += ids[max(0, start - 1) : end - 1]
        logits_TV = model(input_ids=torch.tensor([fed]), past_key_values=cache).logits[0, start - end :]
        positions_1T = torch.arange(start, end)[None]
        noise_TV = gumbel(torch.tensor([request.seed]), positions_1T, logits_TV.shape[1])[0]
        drawn_T = (logits_TV.float() / request.temperature + noise_TV).argmax(dim=-1)
        differing += int((drawn_T != torch.tensor(ids[start:end])).sum())
        fed = []
    return differing
