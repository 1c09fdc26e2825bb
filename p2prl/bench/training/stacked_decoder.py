"""Forward pass of M small GPT-2 decoders at once: weights are rows of one matrix, layers are batched products.

A benchmark run trains several seeds and samples from several old policies at once; at width 48 a single decoder leaves
most of a core idle. The arithmetic is that of transformers' GPT2LMHeadModel (verified by tests), but a group's prompt
is computed once and shared by its completions.

Shape legend: M policies, B prompts of each, G completions of a prompt, P prompt tokens, T completion tokens, W weights
of one policy, V vocabulary, D width, H heads, K head width; N tokens of one policy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from p2prl.bench.training.decoder_shape import DecoderShape
from p2prl.errors import LocalProtocolError

_EPSILON = 1e-5


def completion_logprobs(
    shape: DecoderShape, weights_MW: Tensor, prompts_MBP: Tensor, completions_MBGT: Tensor
) -> Tensor:
    """Log-probs (M, B, G, T) of completions at temperature 1, with gradient to the weights.

    Token ids are int64; after a completion's end any legal id works, since no earlier token attends to it.
    """
    decoder = StackedDecoder(shape, weights_MW)
    return _logprobs(decoder, decoder.before_tokens(prompts_MBP, completions_MBGT), completions_MBGT)


def completion_values(
    shape: DecoderShape, weights_MW: Tensor, prompts_MBP: Tensor, completions_MBGT: Tensor
) -> tuple[Tensor, Tensor]:
    """(log-probs, values) of completions, each (M, B, G, T), from one forward pass, with gradient to the weights.

    The value at a token is the value head's estimate before that token is chosen, in reward units: from the prompt
    and the earlier tokens. LocalProtocolError for a shape without a value head.
    """
    if not shape.value_head:
        raise LocalProtocolError("this decoder has no value head")
    decoder = StackedDecoder(shape, weights_MW)
    features_MND = decoder.before_tokens(prompts_MBP, completions_MBGT)
    return _logprobs(decoder, features_MND, completions_MBGT), decoder.values(features_MND).view_as(completions_MBGT)


def _logprobs(decoder: StackedDecoder, features_MND: Tensor, completions_MBGT: Tensor) -> Tensor:
    logprobs_MNV = torch.log_softmax(decoder.logits(features_MND), dim=-1)
    return logprobs_MNV.gather(-1, completions_MBGT.flatten(1).unsqueeze(-1)).view(completions_MBGT.shape)


@dataclass(frozen=True, kw_only=True)
class _Prefix:
    """A computed prompt, for its completions to attend to."""

    length: int
    keys: list[Tensor]
    """Per layer, (M·B, H, P, K)."""
    values: list[Tensor]
    last_MBD: Tensor
    """Features at the last prompt token, before the final norm."""


class BranchCache:
    """Keys and values of the completion tokens so far, per layer, (M·B·G, H, T, K)."""

    def __init__(self) -> None:
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def length(self) -> int:
        """Completion tokens held."""
        return self.layers[0][0].shape[2] if self.layers else 0

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append to a layer and return all of it."""
        if layer in self.layers:
            keys = torch.cat([self.layers[layer][0], keys], dim=2)
            values = torch.cat([self.layers[layer][1], values], dim=2)
        self.layers[layer] = (keys, values)
        return keys, values


class StackedDecoder:
    """The forward pass of M decoders with given weights."""

    def __init__(self, shape: DecoderShape, weights_MW: Tensor) -> None:
        layout = shape.layout()
        sizes = [math.prod(size) for size in layout.values()]
        if weights_MW.dim() != 2 or weights_MW.shape[1] != sum(sizes):
            raise LocalProtocolError(f"weights have shape {tuple(weights_MW.shape)}, expected (M, {sum(sizes)})")
        # One split, whose backward is one concatenation; each slice's backward would fill a whole row with zeros.
        parts = torch.split(weights_MW, sizes, dim=1)
        self._shape = shape
        self._policies = weights_MW.shape[0]
        self._rows = torch.arange(self._policies).unsqueeze(1)
        self._weights = {
            name: part.reshape(self._policies, *size) for (name, size), part in zip(layout.items(), parts, strict=True)
        }

    def prefix(self, prompts_MBP: Tensor) -> _Prefix:
        """Compute the prompts, each once."""
        policies, prompts, length = prompts_MBP.shape
        x_MND = self._embed(prompts_MBP.reshape(policies, -1), torch.arange(length).repeat(prompts))
        keys, values = [], []
        causal = torch.full((length, length), -torch.inf).triu(1)
        for layer in range(self._shape.layers):
            query, key, value = self._heads(layer, x_MND, policies * prompts, length)
            keys.append(key)
            values.append(value)
            scores = (query @ key.transpose(-1, -2)) * self._scale() + causal
            x_MND = self._rest(layer, x_MND, (scores.softmax(dim=-1) @ value).transpose(1, 2).reshape(x_MND.shape))
        last_MBD = x_MND.view(policies, prompts, length, -1)[:, :, -1]
        return _Prefix(length=length, keys=keys, values=values, last_MBD=last_MBD)

    def branches(self, prefix: _Prefix, tokens_MBGT: Tensor, *, cache: BranchCache | None = None) -> Tensor:
        """Features (M, B, G, T, D) at completion tokens, which attend to their prompt and to earlier tokens."""
        policies, prompts, size, length = tokens_MBGT.shape
        done = 0 if cache is None else cache.length()
        positions = torch.arange(prefix.length + done, prefix.length + done + length).repeat(prompts * size)
        x_MND = self._embed(tokens_MBGT.reshape(policies, -1), positions)
        heads, width = self._shape.heads, self._shape.width // self._shape.heads
        groups, rows = policies * prompts, policies * prompts * size
        causal = torch.full((length, done + length), -torch.inf).triu(done + 1)
        for layer in range(self._shape.layers):
            query, key, value = self._heads(layer, x_MND, rows, length)
            if cache is not None:
                key, value = cache.extend(layer, key, value)
            # All completions of a group attend to the same prompt: one product per group and head.
            queries = query.view(groups, size, heads, length, width).transpose(1, 2)
            queries = queries.reshape(groups, heads, size * length, width)
            to_prompt = (queries @ prefix.keys[layer].transpose(-1, -2)).view(groups, heads, size, length, -1)
            to_prompt = to_prompt.transpose(1, 2).reshape(rows, heads, length, prefix.length)
            to_own = query @ key.transpose(-1, -2) + causal
            shares = (torch.cat([to_prompt, to_own], dim=-1) * self._scale()).softmax(dim=-1)
            from_prompt = shares[..., : prefix.length].reshape(groups, size, heads, length, prefix.length)
            from_prompt = from_prompt.transpose(1, 2).reshape(groups, heads, size * length, prefix.length)
            mixed = (from_prompt @ prefix.values[layer]).view(groups, heads, size, length, width)
            mixed = mixed.transpose(1, 2).reshape(rows, heads, length, width)
            mixed = mixed + shares[..., prefix.length :] @ value
            x_MND = self._rest(layer, x_MND, mixed.transpose(1, 2).reshape(x_MND.shape))
        return x_MND.view(policies, prompts, size, length, self._shape.width)

    def before_tokens(self, prompts_MBP: Tensor, completions_MBGT: Tensor) -> Tensor:
        """Features (M, B·G·T, D) from which each completion token is predicted."""
        policies, _, size, tokens = completions_MBGT.shape
        prefix = self.prefix(prompts_MBP)
        features = prefix.last_MBD[:, :, None, None].expand(-1, -1, size, -1, -1)
        if tokens > 1:
            features = torch.cat([features, self.branches(prefix, completions_MBGT[..., :-1])], dim=3)
        return features.reshape(policies, -1, self._shape.width)

    def logits(self, features_MND: Tensor) -> Tensor:
        """Next-token logits (M, N, V)."""
        return torch.bmm(self._norm("ln_f", features_MND), self._weights["wte.weight"].transpose(1, 2))

    def values(self, features_MND: Tensor) -> Tensor:
        """The value head's estimates (M, N)."""
        weight, bias = self._weights["v_head.weight"].unsqueeze(2), self._weights["v_head.bias"].unsqueeze(1)
        return torch.baddbmm(bias, self._norm("ln_f", features_MND), weight).squeeze(2)

    def _embed(self, tokens_MN: Tensor, positions_N: Tensor) -> Tensor:
        return self._weights["wte.weight"][self._rows, tokens_MN] + self._weights["wpe.weight"][:, positions_N]

    def _norm(self, name: str, x_MND: Tensor) -> Tensor:
        normed = functional.layer_norm(x_MND, (self._shape.width,), eps=_EPSILON)
        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        return torch.addcmul(bias.unsqueeze(1), normed, weight.unsqueeze(1))

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return torch.baddbmm(self._weights[f"{name}.bias"].unsqueeze(1), x, self._weights[f"{name}.weight"])

    def _heads(self, layer: int, x_MND: Tensor, rows: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, each (rows, H, length, K)."""
        mixed = self._linear(f"h.{layer}.attn.c_attn", self._norm(f"h.{layer}.ln_1", x_MND))
        heads = mixed.view(rows, length, 3, self._shape.heads, -1).permute(2, 0, 3, 1, 4)
        return heads[0], heads[1], heads[2]

    def _rest(self, layer: int, x_MND: Tensor, attended_MND: Tensor) -> Tensor:
        x_MND = x_MND + self._linear(f"h.{layer}.attn.c_proj", attended_MND)
        inner = self._linear(f"h.{layer}.mlp.c_fc", self._norm(f"h.{layer}.ln_2", x_MND)).relu()
        return x_MND + self._linear(f"h.{layer}.mlp.c_proj", inner)

    def _scale(self) -> float:
        return 1 / math.sqrt(self._shape.width // self._shape.heads)
