"""Sampling from M stacked decoders at once.

Completions of a prompt that have the same tokens so far are one prefix, and the decoder computes it once.

Shape legend: M policies, B prompts of each, G completions of a prompt, C = B·G, P prompt tokens, T completion tokens, W
weights of one policy, V vocabulary, R distinct prefixes of one policy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from p2prl.errors import ConfigError
from p2prl_lab.bench.training.decoder_shape import DecoderShape
from p2prl_lab.bench.training.stacked_decoder import StackedDecoder, TokenCache


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
    greedy_last: bool = False,
) -> Completions:
    """Sample `group_size` completions of every prompt at temperature 1.

    `uniforms` returns numbers within [0, 1) of the shape (M, B, G, V) for each token; None decodes greedily. With
    `greedy_last`, the last completion of every prompt is greedy, and `uniforms` is asked for the others alone.
    ConfigError when the context is too short.
    """
    if prompts_MBP.shape[-1] + max_new_tokens > shape.context:
        raise ConfigError(f"prompt and completion exceed the context of {shape.context} tokens")
    decoder = StackedDecoder(shape, weights_MW)
    prefix = decoder.prefix(prompts_MBP)
    policies, prompts = prompts_MBP.shape[:2]
    rows = (policies, prompts, group_size)
    noisy_rows = (policies, prompts, group_size - greedy_last, shape.vocabulary)
    features_MRD, cache = prefix.last_MBD, TokenCache(prefix, room=max_new_tokens - 1)
    device = weights_MW.device
    at_MC = torch.arange(prompts, device=device).repeat_interleave(group_size).expand(policies, -1)
    ended = torch.zeros(rows, dtype=torch.bool, device=device)
    tokens, logprobs, masks, spreads = [], [], [], []
    for step in range(max_new_tokens):
        logits_MRV = decoder.logits(features_MRD)
        every_MRV = torch.log_softmax(logits_MRV, dim=-1)
        place = decoder.flat_rows(at_MC, logits_MRV.shape[1])
        noisy = logits_MRV.flatten(0, 1)[place].view(*rows, shape.vocabulary)
        if uniforms is not None:
            noise = gumbel_of(uniforms(noisy_rows).to(device))
            noisy = noisy + (functional.pad(noise, (0, 0, 0, 1)) if greedy_last else noise)
        token = torch.where(ended, end_token, noisy.argmax(dim=-1))
        logprob = every_MRV.flatten(0, 1)[place, token.flatten()].view(rows)
        if entropies:
            spread_MR = -(every_MRV.exp() * every_MRV).sum(dim=-1)
            spreads.append(torch.where(ended, 0.0, spread_MR.flatten()[place].view(rows)))
        tokens.append(token)
        logprobs.append(torch.where(ended, 0.0, logprob))
        masks.append(~ended)
        ended = ended | (token == end_token)
        if bool(ended.all()) or step == max_new_tokens - 1:
            break
        parents_MR, tokens_MR, at_MC = _longer(at_MC, token.view(policies, -1), ~ended.view(policies, -1))
        features_MRD = decoder.next_token(cache, parents_MR, tokens_MR)
    return Completions(
        tokens_MBGT=torch.stack(tokens, dim=-1),
        logprobs_MBGT=torch.stack(logprobs, dim=-1),
        mask_MBGT=torch.stack(masks, dim=-1),
        finished_MBG=ended,
        entropies_MBGT=torch.stack(spreads, dim=-1) if entropies else None,
    )


def gumbel_of(uniforms: Tensor) -> Tensor:
    """Gumbel noise from numbers within [0, 1): the argmax of logits with it is a sample at temperature 1."""
    return -torch.log(-torch.log(uniforms.clamp(1e-20, 1 - 1e-7)))


def _longer(at_MC: Tensor, token_MC: Tensor, alive_MC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The distinct prefixes that are one token longer: (prefix continued, token), each (M, R), and each completion's.

    Completions that have ended need none and stand at the first. A policy with fewer prefixes than another continues
    its first by token 0, for nothing. On a card every completion is a prefix of its own, which asks it for nothing.
    """
    policies = at_MC.shape[0]
    if at_MC.device.type != "cpu":
        own_MC = torch.arange(at_MC.shape[1], device=at_MC.device).expand(policies, -1)
        return at_MC, token_MC, own_MC
    at, token, alive = at_MC.numpy(), token_MC.numpy(), alive_MC.numpy()
    tokens, prefixes = int(token.max()) + 1, int(at.max()) + 1
    owner = np.broadcast_to(np.arange(policies)[:, None], at.shape)
    distinct, which = np.unique(((owner * prefixes + at) * tokens + token)[alive], return_inverse=True)
    owners = distinct // (prefixes * tokens)
    counts = np.bincount(owners, minlength=policies)
    places = np.arange(len(distinct)) - (np.cumsum(counts) - counts)[owners]
    parents, added = (np.zeros((policies, int(counts.max())), dtype=np.int64) for _ in range(2))
    parents[owners, places] = distinct // tokens % prefixes
    added[owners, places] = distinct % tokens
    longer = np.zeros_like(at)
    longer[alive] = places[which]
    return torch.from_numpy(parents), torch.from_numpy(added), torch.from_numpy(longer)
