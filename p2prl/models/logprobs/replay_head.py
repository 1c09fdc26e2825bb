"""Head of a causal language model for replays: final hidden states, and logits of a part of the vocabulary at a time.

A replay has thousands of positions and needs no complete row of logits. One matrix product per part of the vocabulary,
over all positions, reads the layer's weights once and keeps its logits in the cache.

Shapes: N rows, L tokens, M positions, D the hidden size, V the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache

from p2prl.models.logprobs.linear_head import find_linear_head
from p2prl.models.logprobs.policy_logprobs import pad_right

_TOKENS_PER_CALL = 128
"""Tokens that cost about as much as one more call of a small model: 1.5 ms against .01 ms a token for one of 59,000
parameters. Computing a prompt once must save as many for each call it adds."""


class ReplayHead:
    """The body of a model and its head."""

    def __init__(self, body: Any, linear: nn.Linear) -> None:
        self._body = body
        self._linear = linear

    def states_before(self, prompts: Sequence[tuple[int, ...]], completions: Sequence[Sequence[int]]) -> Tensor:
        """Final hidden states (M, D) that predict the tokens of each completion, one completion after the other.

        A prompt that several rows share, as in a group, is computed once, unless it is so short that fewer and larger
        batches cost less.
        """
        owners: dict[tuple[int, ...], list[int]] = {}
        for row, prompt in enumerate(prompts):
            owners.setdefault(prompt, []).append(row)
        saved = sum(len(prompt) * (len(rows) - 1) for prompt, rows in owners.items())
        if saved < _TOKENS_PER_CALL * (2 * len(owners) - 1):
            return torch.cat(self._after_own_prompts(prompts, completions))
        states: dict[int, Tensor] = {}
        for prompt, rows in owners.items():
            states.update(zip(rows, self._after_shared(prompt, [completions[row] for row in rows]), strict=True))
        return torch.cat([states[row] for row in range(len(prompts))])

    def _after_own_prompts(
        self, prompts: Sequence[tuple[int, ...]], completions: Sequence[Sequence[int]]
    ) -> list[Tensor]:
        rows = [[*prompt, *ids[:-1]] for prompt, ids in zip(prompts, completions, strict=True)]
        states_NLD = self._body(input_ids=pad_right(rows, self._linear.weight.device), use_cache=False)[0]
        return [states_NLD[i, len(prompt) - 1 : len(rows[i])] for i, prompt in enumerate(prompts)]

    def _after_shared(self, prompt: tuple[int, ...], completions: Sequence[Sequence[int]]) -> list[Tensor]:
        device = self._linear.weight.device
        cache = DynamicCache(config=self._body.config)
        first_1D = self._body(input_ids=torch.tensor([prompt], device=device), past_key_values=cache)[0][0, -1:]
        rows = [list(ids[:-1]) for ids in completions]
        if not any(rows):
            return [first_1D] * len(rows)
        cache.batch_select_indices(torch.zeros(len(rows), dtype=torch.int64, device=device))
        states_NLD = self._body(input_ids=pad_right(rows, device), past_key_values=cache)[0]
        return [torch.cat([first_1D, states_NLD[i, : len(row)]]) for i, row in enumerate(rows)]

    def logits(self, states: Tensor, first: int, end: int) -> Tensor:
        """Logits (M, `end` − `first`) float32 of tokens `first` to `end` − 1 at `states` (M, D).

        On the CPU, where products in 16 bits are slow, they are computed in float32 and rounded to the model's dtype,
        as the model's own are.
        """
        weight, bias = self._linear.weight[first:end], self._bias(first, end)
        if states.device.type != "cpu" or weight.dtype == torch.float32:
            return nn.functional.linear(states, weight, bias).float()
        made = nn.functional.linear(states.float(), weight.float(), None if bias is None else bias.float())
        return made.to(weight.dtype).float()

    def _bias(self, first: int, end: int) -> Tensor | None:
        bias: Tensor | None = self._linear._parameters["bias"]
        return None if bias is None else bias[first:end]


def find_replay_head(model: Any) -> ReplayHead | None:
    """The output layer of a Hugging Face causal LM, or None if its logits are anything but that layer's output."""
    linear = find_linear_head(model)
    return None if linear is None else ReplayHead(model.base_model, linear)
