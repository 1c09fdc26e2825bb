"""Sampling from M stacked decoders at once.

Shape legend: M policies, B prompts of each, G completions of a prompt, P prompt tokens, T completion tokens, W weights
of one policy, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from p2prl.bench.training.decoder_shape import DecoderShape
from p2prl.bench.training.stacked_decoder import BranchCache, StackedDecoder
from p2prl.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Completions:
    """Sampled completions; T is the length of the longest."""

    tokens_MBGT: Tensor
    """int64; the end token is included, and repeated after it."""
    logprobs_MBGT: Tensor
    """Nats, at temperature 1; 0 off the mask."""
    mask_MBGT: Tensor
    """Bool: true up to and including the end token."""
    finished_MBG: Tensor
    """Bool: the end token was sampled within the limit."""
    entropies_MBGT: Tensor | None = None
    """Nats: entropy of the distribution each token was drawn from; 0 off the mask. None unless requested."""


@torch.no_grad()
def sample(
    shape: DecoderShape,
    weights_MW: Tensor,
    prompts_MBP: Tensor,
    *,
    group_size: int,
    max_new_tokens: int,
    end_token: int,
    uniforms: Callable[[tuple[int, ...]], Tensor] | None,
    entropies: bool = False,
) -> Completions:
    """Sample `group_size` completions of every prompt at temperature 1.

    `uniforms` returns numbers within [0, 1) of the shape (M, B, G, V) for each token; None decodes greedily.
    ConfigError when the context is too short.
    """
    if prompts_MBP.shape[-1] + max_new_tokens > shape.context:
        raise ConfigError(f"prompt and completion exceed the context of {shape.context} tokens")
    decoder = StackedDecoder(shape, weights_MW)
    prefix = decoder.prefix(prompts_MBP)
    policies, prompts = prompts_MBP.shape[:2]
    features = prefix.last_MBD.unsqueeze(2).expand(-1, -1, group_size, -1)
    rows = (policies, prompts, group_size)
    ended = torch.zeros(rows, dtype=torch.bool)
    cache = BranchCache()
    tokens, logprobs, masks, spreads = [], [], [], []
    for step in range(max_new_tokens):
        logits = decoder.logits(features.reshape(policies, -1, shape.width)).view(*rows, shape.vocabulary)
        noisy = logits
        if uniforms is not None:
            noisy = logits - torch.log(-torch.log(uniforms((*rows, shape.vocabulary)).clamp(1e-20, 1 - 1e-7)))
        token = torch.where(ended, end_token, noisy.argmax(dim=-1))
        every = torch.log_softmax(logits, dim=-1)
        logprob = every.gather(-1, token.unsqueeze(-1)).squeeze(-1)
        if entropies:
            spreads.append(torch.where(ended, 0.0, -(every.exp() * every).sum(dim=-1)))
        tokens.append(token)
        logprobs.append(torch.where(ended, 0.0, logprob))
        masks.append(~ended)
        ended = ended | (token == end_token)
        if bool(ended.all()) or step == max_new_tokens - 1:
            break
        features = decoder.branches(prefix, token.unsqueeze(-1), cache=cache).squeeze(3)
    return Completions(
        tokens_MBGT=torch.stack(tokens, dim=-1),
        logprobs_MBGT=torch.stack(logprobs, dim=-1),
        mask_MBGT=torch.stack(masks, dim=-1),
        finished_MBG=ended,
        entropies_MBGT=torch.stack(spreads, dim=-1) if entropies else None,
    )
