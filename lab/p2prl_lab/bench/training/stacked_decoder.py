"""Forward pass of M small GPT-2 decoders at once: weights are rows of one matrix, layers are batched products.

A benchmark run trains several seeds and samples from several old policies at once; at width 48 a single decoder leaves
most of a core idle. The arithmetic is that of transformers' GPT2LMHeadModel (verified by tests), but nothing is
computed twice: a group's prompt is shared by its completions, and equal completions of a prompt are one, because a
trained policy repeats itself.

Shape legend: M policies, B prompts of each, G completions of a prompt, P prompt tokens, T completion tokens, W weights
of one policy, V vocabulary, D width, H heads, K head width; N tokens of one policy; R distinct completions of one
policy, or distinct prefixes of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from p2prl.errors import LocalProtocolError
from p2prl_lab.bench.training.decoder_shape import DecoderShape

_EPSILON = 1e-5


def completion_logprobs(
    shape: DecoderShape, weights_MW: Tensor, prompts_MBP: Tensor, completions_MBGT: Tensor
) -> Tensor:
    """Log-probs (M, B, G, T) of completions at temperature 1, with gradient to the weights.

    Token ids are int64; after a completion's end any legal id works, since no earlier token attends to it.
    """
    decoder, distinct = StackedDecoder(shape, weights_MW), _Distinct.of(completions_MBGT)
    features_MND = decoder.before_tokens(decoder.prefix(prompts_MBP), distinct.prompts_MR, distinct.tokens_MRT)
    logprobs_MRT = _logprobs(decoder, features_MND, distinct.tokens_MRT)
    return distinct.of_each(logprobs_MRT).view(completions_MBGT.shape)


def completion_values(
    shape: DecoderShape, weights_MW: Tensor, prompts_MBP: Tensor, completions_MBGT: Tensor
) -> tuple[Tensor, Tensor]:
    """(log-probs, values) of completions, each (M, B, G, T), from one forward pass, with gradient to the weights.

    The value at a token is the value head's estimate before that token is chosen, in reward units: from the prompt
    and the earlier tokens. LocalProtocolError for a shape without a value head.
    """
    if not shape.value_head:
        raise LocalProtocolError("this decoder has no value head")
    decoder, distinct = StackedDecoder(shape, weights_MW), _Distinct.of(completions_MBGT)
    features_MND = decoder.before_tokens(decoder.prefix(prompts_MBP), distinct.prompts_MR, distinct.tokens_MRT)
    logprobs_MRT = _logprobs(decoder, features_MND, distinct.tokens_MRT)
    values_MRT = decoder.values(features_MND).view_as(distinct.tokens_MRT)
    shape_MBGT = completions_MBGT.shape
    return distinct.of_each(logprobs_MRT).view(shape_MBGT), distinct.of_each(values_MRT).view(shape_MBGT)


def _logprobs(decoder: StackedDecoder, features_MND: Tensor, tokens_MRT: Tensor) -> Tensor:
    logprobs_MNV = torch.log_softmax(decoder.logits(features_MND), dim=-1)
    return logprobs_MNV.gather(-1, tokens_MRT.flatten(1).unsqueeze(-1)).view(tokens_MRT.shape)


@dataclass(frozen=True, kw_only=True)
class _Distinct:
    """The distinct completions of every policy; a policy with fewer than another repeats its first."""

    prompts_MR: Tensor
    """Index of the prompt of each."""
    tokens_MRT: Tensor
    row_MC: Tensor
    """For each of the B·G completions, its place among the distinct ones."""

    @classmethod
    def of(cls, completions_MBGT: Tensor) -> _Distinct:
        """Find them: completions are the same when their prompts and all their tokens are."""
        policies, prompts, size, tokens = completions_MBGT.shape
        every = completions_MBGT.reshape(policies, prompts * size, tokens)
        device = completions_MBGT.device
        owners = torch.arange(prompts, device=device).repeat_interleave(size)
        if size == 1 or device.type != "cpu":  # a card computes repeats in less time than it takes to find them
            own_MC = torch.arange(prompts * size, device=device).expand(policies, -1)
            return cls(prompts_MR=owners.expand(policies, -1), tokens_MRT=every, row_MC=own_MC)
        texts, width = every.numpy().tobytes(), every.element_size() * tokens
        firsts, rows = list[list[int]](), list[list[int]]()
        for policy in range(policies):
            places: dict[tuple[int, bytes], int] = {}
            first, row = list[int](), list[int]()
            for index in range(prompts * size):
                begin = (policy * prompts * size + index) * width
                key = index // size, texts[begin : begin + width]
                if key not in places:
                    places[key] = len(first)
                    first.append(index)
                row.append(places[key])
            firsts.append(first)
            rows.append(row)
        most = max(map(len, firsts))
        chosen_MR = torch.tensor([first + first[:1] * (most - len(first)) for first in firsts])
        kept = chosen_MR.unsqueeze(-1).expand(-1, -1, tokens)
        return cls(prompts_MR=owners[chosen_MR], tokens_MRT=every.gather(1, kept), row_MC=torch.tensor(rows))

    def of_each(self, figures_MRT: Tensor) -> Tensor:
        """The figures (M, B·G, T) of every completion, from those of the distinct ones."""
        return figures_MRT.gather(1, self.row_MC.unsqueeze(-1).expand(-1, -1, figures_MRT.shape[-1]))


@dataclass(frozen=True, kw_only=True)
class Prefix:
    """A computed prompt, for its completions to attend to."""

    length: int
    keys: list[Tensor]
    """Per layer, (M·B, H, P, K)."""
    values: list[Tensor]
    last_MBD: Tensor
    """Features at the last prompt token, before the final norm."""


class TokenCache:
    """Keys and values of R prefixes of each policy, prompt included, with room for longer ones."""

    def __init__(self, prefix: Prefix, *, room: int) -> None:
        """Begin with the prompts; `room` tokens can be added to each."""
        self.length = prefix.length
        """Tokens of a prefix."""
        self._layers = [
            [functional.pad(held, (0, 0, 0, room)) for held in pair]
            for pair in zip(prefix.keys, prefix.values, strict=True)
        ]
        """Keys and values of each layer, (M·R, H, P + room, K)."""

    @property
    def rows(self) -> int:
        """M·R."""
        return self._layers[0][0].shape[0]

    def keep(self, rows: Tensor) -> None:
        """Keep these of the M·R rows, in this order; one may appear many times."""
        if rows.shape[0] != self.rows or not torch.equal(rows, torch.arange(self.rows, device=rows.device)):
            self._layers = [[held.index_select(0, rows) for held in pair] for pair in self._layers]

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append a token to every prefix of a layer and return all of it; the last layer makes prefixes longer."""
        held_keys, held_values = self._layers[layer]
        longer = self.length + 1
        held_keys[:, :, self.length] = keys[:, :, 0]
        held_values[:, :, self.length] = values[:, :, 0]
        if layer == len(self._layers) - 1:
            self.length = longer
        return held_keys[:, :, :longer], held_values[:, :, :longer]


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
        self._device = weights_MW.device
        self._rows = torch.arange(self._policies, device=self._device).unsqueeze(1)
        self._weights = {
            name: part.reshape(self._policies, *size) for (name, size), part in zip(layout.items(), parts, strict=True)
        }

    def prefix(self, prompts_MBP: Tensor) -> Prefix:
        """Compute the prompts, each once."""
        policies, prompts, length = prompts_MBP.shape
        x_MND = self._embed(prompts_MBP.reshape(policies, -1), self._places(0, length).repeat(prompts))
        keys, values = [], []
        hidden = self._later(length)
        for layer in range(self._shape.layers):
            query, key, value = self._heads(layer, x_MND, policies * prompts, length)
            keys.append(key)
            values.append(value)
            if layer == self._shape.layers - 1:  # of the last layer only the last token's features are read
                query, hidden = query[:, :, -1:], hidden[-1:]
                x_MND = x_MND.view(policies, prompts, length, -1)[:, :, -1]
            x_MND = self._rest(layer, x_MND, self._attended(query, key, value, hidden).reshape(x_MND.shape))
        return Prefix(length=length, keys=keys, values=values, last_MBD=x_MND)

    def branches(self, prefix: Prefix, prompts_MR: Tensor, tokens_MRT: Tensor) -> Tensor:
        """Features (M, R, T, D) at completion tokens, which attend to their prompt and to earlier tokens."""
        policies, rows, length = tokens_MRT.shape
        positions = self._places(prefix.length, prefix.length + length).repeat(rows)
        x_MND = self._embed(tokens_MRT.reshape(policies, -1), positions)
        groups = self.flat_rows(prompts_MR, prefix.last_MBD.shape[1])
        hidden = functional.pad(self._later(length), (prefix.length, 0))
        for layer in range(self._shape.layers):
            query, key, value = self._heads(layer, x_MND, policies * rows, length)
            keys = torch.cat([prefix.keys[layer].index_select(0, groups), key], dim=2)
            values = torch.cat([prefix.values[layer].index_select(0, groups), value], dim=2)
            x_MND = self._rest(layer, x_MND, self._attended(query, keys, values, hidden).reshape(x_MND.shape))
        return x_MND.view(policies, rows, length, self._shape.width)

    def next_token(self, cache: TokenCache, parents_MR: Tensor, tokens_MR: Tensor) -> Tensor:
        """Features (M, R, D) at one more token; each continues the prefix `parents_MR` of those that `cache` holds.

        The cache then holds the longer prefixes.
        """
        policies, rows = tokens_MR.shape
        x_MRD = self._embed(tokens_MR, self._places(cache.length, cache.length + 1))
        cache.keep(self.flat_rows(parents_MR, cache.rows // policies))
        for layer in range(self._shape.layers):
            query, key, value = self._heads(layer, x_MRD, policies * rows, 1)
            keys, values = cache.extend(layer, key, value)
            x_MRD = self._rest(layer, x_MRD, self._attended(query, keys, values, None).reshape(x_MRD.shape))
        return x_MRD

    def before_tokens(self, prefix: Prefix, prompts_MR: Tensor, tokens_MRT: Tensor) -> Tensor:
        """Features (M, R·T, D) from which each token of R completions of a policy is predicted."""
        policies, _, tokens = tokens_MRT.shape
        width = self._shape.width
        last_MRD = prefix.last_MBD.gather(1, prompts_MR.unsqueeze(-1).expand(-1, -1, width))
        features = last_MRD.unsqueeze(2)
        if tokens > 1:
            later = self.branches(prefix, prompts_MR, tokens_MRT[..., :-1])
            features = torch.cat([features, later], dim=2)
        return features.reshape(policies, -1, width)

    def logits(self, features_MND: Tensor) -> Tensor:
        """Next-token logits (M, N, V)."""
        return torch.bmm(self._norm("ln_f", features_MND), self._weights["wte.weight"].transpose(1, 2))

    def values(self, features_MND: Tensor) -> Tensor:
        """The value head's estimates (M, N)."""
        weight, bias = self._weights["v_head.weight"].unsqueeze(2), self._weights["v_head.bias"].unsqueeze(1)
        return torch.baddbmm(bias, self._norm("ln_f", features_MND), weight).squeeze(2)

    def flat_rows(self, index_MR: Tensor, count: int) -> Tensor:
        """Places (M·R) of the entries `index_MR` of M policies' lists of `count`, one list after another."""
        return (index_MR + count * self._rows).flatten()

    def _places(self, start: int, stop: int) -> Tensor:
        return torch.arange(start, stop, device=self._device)

    def _later(self, length: int) -> Tensor:
        """−∞ where a token would look at a later one, else 0."""
        return torch.full((length, length), -torch.inf, device=self._device).triu(1)

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

    def _attended(self, query: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None) -> Tensor:
        """Attention of (rows, H, T, K) queries, as (rows, T, H, K); `hidden` is −∞ where a query must not look."""
        if hidden is None:  # one query: nothing to fuse
            shares = ((query @ keys.transpose(-1, -2)) * self._scale()).softmax(dim=-1)
            return (shares @ values).transpose(1, 2)
        # Fused, the shares of long completions are never written out: 1.8 times as fast at 148 tokens.
        fused = functional.scaled_dot_product_attention(query, keys, values, attn_mask=hidden, scale=self._scale())
        return fused.transpose(1, 2)

    def _rest(self, layer: int, x_MND: Tensor, attended_MND: Tensor) -> Tensor:
        x_MND = x_MND + self._linear(f"h.{layer}.attn.c_proj", attended_MND)
        inner = self._linear(f"h.{layer}.mlp.c_fc", self._norm(f"h.{layer}.ln_2", x_MND)).relu()
        return x_MND + self._linear(f"h.{layer}.mlp.c_proj", inner)

    def _scale(self) -> float:
        return 1 / math.sqrt(self._shape.width // self._shape.heads)
