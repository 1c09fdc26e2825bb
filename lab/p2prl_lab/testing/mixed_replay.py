"""Replay of a completion that several policies sampled: the keys and values of each stretch are its own policy's.

The scorer cannot: a group on the wire declares one policy. This loop is an oracle for samplers that swap policies while
completions are in flight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from p2prl.models.logprobs.linear_head import find_linear_head
from p2prl.models.replay_statistics.judge import TokenScores
from p2prl.models.sampler_port import Generation, GenerationRequest
from p2prl.models.seeded_draw.draw import margins
from p2prl.models.seeded_draw.gumbel_noise import gumbel


@torch.inference_mode()
def differing_tokens(models: Mapping[int, Any], request: GenerationRequest, generation: Generation) -> int:
    """Tokens of `generation` that `models`, transformers models by version, would not have drawn with its spans."""
    ids = generation.token_ids
    if generation.spans[0][0] != 0:
        return len(ids)
    differing = 0
    for start, logits_TV in _stretches(models, request, generation):
        end = start + len(logits_TV)
        noise_TV = gumbel(torch.tensor([request.seed]), torch.arange(start, end)[None], logits_TV.shape[1])[0]
        drawn_T = (logits_TV.float().cpu() / request.temperature + noise_TV).argmax(dim=-1)
        differing += int((drawn_T != torch.tensor(ids[start:end])).sum())
    return differing


@torch.inference_mode()
def mixed_scores(models: Mapping[int, Any], request: GenerationRequest, generation: Generation) -> TokenScores:
    """What a learner would judge of `generation`, by its spans; on the models' device."""
    parts = []
    for start, logits_TV in _stretches(models, request, generation):
        count = len(logits_TV)
        ids = torch.tensor(generation.token_ids[start : start + count])
        temperatures, seeds = torch.full((count,), request.temperature), torch.full((count,), request.seed)
        scored = margins(logits_TV, temperatures, seeds, torch.arange(start, start + count), ids)
        sizes = logits_TV.float().square().mean(dim=-1).sqrt() / request.temperature
        parts.append([part.double().cpu().numpy() for part in (*scored, sizes)])
    below, logprobs, best, sizes_T = (np.concatenate(part) for part in zip(*parts, strict=True))
    claimed = np.asarray(generation.logprobs, np.float64)
    return TokenScores(margins=below, logprobs=logprobs, best_logprobs=best, sizes=sizes_T, claimed=claimed)


def _stretches(
    models: Mapping[int, Any], request: GenerationRequest, generation: Generation
) -> Iterator[tuple[int, Tensor]]:
    """First token and logits (T, V) of every span."""
    ids = generation.token_ids
    starts = [start for start, _ in generation.spans]
    cache: DynamicCache | None = None
    fed = list(request.prompt_ids)
    for (start, version), end in zip(generation.spans, [*starts[1:], len(ids)], strict=True):
        model = models[version]
        cache = cache or DynamicCache(config=model.config)
        fed += ids[max(0, start - 1) : end - 1]
        fed_1L = torch.tensor([fed], device=model.device)
        yield start, _logits(model, fed_1L, cache, end - start)
        fed = []


def _logits(model: Any, fed_1L: Tensor, cache: DynamicCache, count: int) -> Tensor:
    """Logits (T, V) of the last positions. Those of a plain head are summed in float32, as by scorers and samplers: in
    bfloat16 the logits themselves would be rounded, by more than all layers before."""
    head = find_linear_head(model)
    if head is None:
        return model(input_ids=fed_1L, past_key_values=cache).logits[0, -count:]  # type: ignore[no-any-return]
    states_TD = model.base_model(input_ids=fed_1L, past_key_values=cache).last_hidden_state[0, -count:]
    bias: Any = head.bias  # None where the head has none, whatever its type says
    return torch.nn.functional.linear(states_TD.float(), head.weight.float(), None if bias is None else bias.float())
