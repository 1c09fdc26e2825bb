"""M small GPT-2 decoders as one: their weights are rows of one matrix, their layers are batched matrix products.

A run of the benchmark trains several seeds and samples from several old policies at once; at width 48 one decoder
alone leaves most of a core waiting. The arithmetic is that of transformers' GPT2LMHeadModel (tests prove it), but a
group's prompt is worked once and its completions branch off it.

Shape legend: M policies, B prompts of each, G completions of a prompt, P prompt tokens, T completion tokens, W weights
of one policy, V vocabulary, D width, H heads, K head width; N tokens of one policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from p2prl.errors import ConfigError, LocalProtocolError

_EPSILON = 1e-5
_INITIAL_DEVIATION = (
    0.1  # as `p2prl/models/tiny_models.py`: at the customary .02 so narrow a decoder hardly begins to learn
)


@dataclass(frozen=True, kw_only=True)
class DecoderShape:
    """Sizes of one decoder."""

    vocabulary: int
    """Tokens."""
    context: int
    """Most tokens of prompt and completion together."""
    width: int = 48
    """Size of the residual stream; `heads` divides it."""
    feedforward: int = 192
    """Inner size of the feed-forward layers."""
    layers: int = 2
    """Decoder layers."""
    heads: int = 2
    """Attention heads."""
    value_head: bool = False
    """Also estimate the value of what has been written: one more linear output of the last features."""

    def __post_init__(self) -> None:
        for name in ("vocabulary", "context", "width", "feedforward", "layers", "heads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}", remedy=f"Set {name} to 1 or more.")
        if self.width % self.heads:
            raise ConfigError(f"heads = {self.heads} does not divide width = {self.width}")

    def layout(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every weight, in the order of a row of weights. Names are GPT2LMHeadModel's."""
        width, inner = self.width, self.feedforward
        named: dict[str, tuple[int, ...]] = {
            "wte.weight": (self.vocabulary, width),
            "wpe.weight": (self.context, width),
        }
        for layer in range(self.layers):
            named |= {
                f"h.{layer}.ln_1.weight": (width,),
                f"h.{layer}.ln_1.bias": (width,),
                f"h.{layer}.attn.c_attn.weight": (width, 3 * width),
                f"h.{layer}.attn.c_attn.bias": (3 * width,),
                f"h.{layer}.attn.c_proj.weight": (width, width),
                f"h.{layer}.attn.c_proj.bias": (width,),
                f"h.{layer}.ln_2.weight": (width,),
                f"h.{layer}.ln_2.bias": (width,),
                f"h.{layer}.mlp.c_fc.weight": (width, inner),
                f"h.{layer}.mlp.c_fc.bias": (inner,),
                f"h.{layer}.mlp.c_proj.weight": (inner, width),
                f"h.{layer}.mlp.c_proj.bias": (width,),
            }
        named |= {"ln_f.weight": (width,), "ln_f.bias": (width,)}
        # Last, so that a row of weights with a value head begins with the row of the same policy without one.
        return named | ({"v_head.weight": (width,), "v_head.bias": (1,)} if self.value_head else {})

    def size(self) -> int:
        """Weights of one policy."""
        return sum(math.prod(shape) for shape in self.layout().values())


def initial_weights(shape: DecoderShape, seed: int) -> Tensor:
    """A row (W,) of random weights, float32, that `seed` fixes; drawn as GPT-2 draws its own."""
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for name, size in shape.layout().items():
        if name.endswith("bias") or name.startswith("v_head"):
            parts.append(torch.zeros(math.prod(size)))
        elif "ln_" in name:
            parts.append(torch.ones(math.prod(size)))
        else:
            deviation = _INITIAL_DEVIATION
            if name.endswith("c_proj.weight"):
                deviation /= math.sqrt(2 * shape.layers)  # each layer adds twice to the residual stream
            parts.append(deviation * torch.randn(math.prod(size), generator=generator))
    return torch.cat(parts)


def completion_logprobs(
    shape: DecoderShape, weights_MW: Tensor, prompts_MBP: Tensor, completions_MBGT: Tensor
) -> Tensor:
    """Log-probs (M, B, G, T) of completions at temperature 1, with gradient to the weights.

    Token ids are int64; what follows a completion's end may be any legal id, since nothing before it looks there.
    """
    decoder = _Decoder(shape, weights_MW)
    return _logprobs(decoder, decoder.before_tokens(prompts_MBP, completions_MBGT), completions_MBGT)


def completion_values(
    shape: DecoderShape, weights_MW: Tensor, prompts_MBP: Tensor, completions_MBGT: Tensor
) -> tuple[Tensor, Tensor]:
    """(log-probs, values) of completions, each (M, B, G, T), from one forward pass, with gradient to the weights.

    The value at a token is the value head's estimate before that token is chosen, in reward units: it has seen the
    prompt and what precedes. LocalProtocolError for a shape without a value head.
    """
    if not shape.value_head:
        raise LocalProtocolError("this decoder has no value head")
    decoder = _Decoder(shape, weights_MW)
    features_MND = decoder.before_tokens(prompts_MBP, completions_MBGT)
    return _logprobs(decoder, features_MND, completions_MBGT), decoder.values(features_MND).view_as(completions_MBGT)


def _logprobs(decoder: _Decoder, features_MND: Tensor, completions_MBGT: Tensor) -> Tensor:
    logprobs_MNV = torch.log_softmax(decoder.logits(features_MND), dim=-1)
    return logprobs_MNV.gather(-1, completions_MBGT.flatten(1).unsqueeze(-1)).view(completions_MBGT.shape)


@dataclass(frozen=True, kw_only=True)
class Completions:
    """What `sample` returns; T is the longest completion."""

    tokens_MBGT: Tensor
    """int64; the end token is included, and repeated after it."""
    logprobs_MBGT: Tensor
    """Nats, at temperature 1; 0 off the mask."""
    mask_MBGT: Tensor
    """Bool: true up to and including the end token."""
    finished_MBG: Tensor
    """Bool: the end token came within the limit."""


@torch.no_grad()
def sample(
    shape: DecoderShape,
    weights_MW: Tensor,
    prompts_MBP: Tensor,
    *,
    group_size: int,
    max_new_tokens: int,
    end_token: int,
    uniforms: Callable[[tuple[int, ...]], Tensor],
) -> Completions:
    """Sample `group_size` completions of every prompt at temperature 1.

    `uniforms` gives numbers within [0, 1) of the shape (M, B, G, V), once a token. ConfigError when the context is too
    short.
    """
    if prompts_MBP.shape[-1] + max_new_tokens > shape.context:
        raise ConfigError(f"prompt and completion exceed the context of {shape.context} tokens")
    decoder = _Decoder(shape, weights_MW)
    prefix = decoder.prefix(prompts_MBP)
    policies, prompts = prompts_MBP.shape[:2]
    features = prefix.last_MBD.unsqueeze(2).expand(-1, -1, group_size, -1)
    rows = (policies, prompts, group_size)
    ended = torch.zeros(rows, dtype=torch.bool)
    cache = BranchCache()
    tokens, logprobs, masks = [], [], []
    for step in range(max_new_tokens):
        logits = decoder.logits(features.reshape(policies, -1, shape.width)).view(*rows, shape.vocabulary)
        gumbel = -torch.log(-torch.log(uniforms((*rows, shape.vocabulary)).clamp(1e-20, 1 - 1e-7)))
        token = torch.where(ended, end_token, (logits + gumbel).argmax(dim=-1))
        logprob = torch.log_softmax(logits, dim=-1).gather(-1, token.unsqueeze(-1)).squeeze(-1)
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
    )


@dataclass(frozen=True, kw_only=True)
class _Prefix:
    """A prompt as its completions see it."""

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
        """Append to a layer and give back all of it."""
        if layer in self.layers:
            keys = torch.cat([self.layers[layer][0], keys], dim=2)
            values = torch.cat([self.layers[layer][1], values], dim=2)
        self.layers[layer] = (keys, values)
        return keys, values


class _Decoder:
    """The forward pass of M decoders."""

    def __init__(self, shape: DecoderShape, weights_MW: Tensor) -> None:
        layout = shape.layout()
        sizes = [math.prod(size) for size in layout.values()]
        if weights_MW.dim() != 2 or weights_MW.shape[1] != sum(sizes):
            raise LocalProtocolError(f"weights have shape {tuple(weights_MW.shape)}, expected (M, {sum(sizes)})")
        # One split: its backward is one concatenation, where slices would each fill a whole row with zeros.
        parts = torch.split(weights_MW, sizes, dim=1)
        self._shape = shape
        self._policies = weights_MW.shape[0]
        self._rows = torch.arange(self._policies).unsqueeze(1)
        self._weights = {
            name: part.reshape(self._policies, *size) for (name, size), part in zip(layout.items(), parts, strict=True)
        }

    def prefix(self, prompts_MBP: Tensor) -> _Prefix:
        """Work the prompts, each once."""
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
        """Features (M, B, G, T, D) at completion tokens, which see their prompt and what precedes them."""
        policies, prompts, size, length = tokens_MBGT.shape
        done = 0 if cache is None else cache.length()
        places = torch.arange(prefix.length + done, prefix.length + done + length).repeat(prompts * size)
        x_MND = self._embed(tokens_MBGT.reshape(policies, -1), places)
        heads, width = self._shape.heads, self._shape.width // self._shape.heads
        groups, rows = policies * prompts, policies * prompts * size
        causal = torch.full((length, done + length), -torch.inf).triu(done + 1)
        for layer in range(self._shape.layers):
            query, key, value = self._heads(layer, x_MND, rows, length)
            if cache is not None:
                key, value = cache.extend(layer, key, value)
            # All completions of a group ask the same prompt: one product per group and head.
            asking = query.view(groups, size, heads, length, width).transpose(1, 2)
            asking = asking.reshape(groups, heads, size * length, width)
            to_prompt = (asking @ prefix.keys[layer].transpose(-1, -2)).view(groups, heads, size, length, -1)
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
        """Features (M, B·G·T, D) that each completion token is chosen from."""
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

    def _embed(self, tokens_MN: Tensor, places_N: Tensor) -> Tensor:
        return self._weights["wte.weight"][self._rows, tokens_MN] + self._weights["wpe.weight"][:, places_N]

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
