"""Score completions in micro-batches, and push known coefficients on their log-probs back into the model's gradient.

This is the policy's side of a training step that never holds the logits of a batch: the loss is computed on the
log-probs alone, and gives one coefficient for each. Models whose logits are more than a linear layer of the hidden
states (soft caps, scales) go through their own logits instead, which costs memory for each micro-batch.

Shapes: N rows, L tokens of the longest, M completion tokens of all rows, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from p2prl.models.logprobs.policy_logprobs import TokenIds, joined, pad_right
from p2prl.models.logprobs.training_head import find_training_head

Row = tuple[TokenIds, TokenIds]
"""Prompt and completion, neither empty."""

_VARLEN_ATTENTION = ("flash_attention_2",)
"""Attention implementations that take rows joined to one, told apart by their positions, and compute no padding."""


@dataclass(frozen=True, slots=True)
class ScoredRows:
    """Log-probs of a micro-batch, in the order of its rows."""

    tokens_M: Tensor
    logprobs_M: Tensor
    """Nats, float32."""
    normalizers_M: Tensor
    """Log-normalizers, for `PolicyForward.backward`; zeros from a model's own logits."""
    graph: Tensor | None
    """Hidden states or log-probs with their graph; None without a graph."""
    hidden_MH: Tensor | None = None
    """Hidden states that the tokens were chosen from, without a graph; None from a model's own logits."""


class PolicyForward:
    """A causal LM that scores rows and takes gradients through them."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        temperature: float,
        autocast: torch.dtype | None = None,
        packs: bool | None = None,
    ) -> None:
        """`autocast` is a 16-bit type for the products of a float32 model.

        `packs` joins rows to one instead of padding them; None does so where the attention's kernel then computes less.
        """
        self._model = model
        self._temperature = temperature
        self._autocast = autocast
        self._head = find_training_head(model, temperature=temperature, compute_dtype=autocast)
        self._layers = [layer for layer in model.modules() if isinstance(layer, GradientCheckpointingLayer)]
        self._packs = model.config._attn_implementation in _VARLEN_ATTENTION if packs is None else packs

    @property
    def has_linear_head(self) -> bool:
        """Whether the logits are a linear layer of the hidden states, which are then known."""
        return self._head is not None

    def autocast(self) -> AbstractContextManager[Any]:
        """Context in which the model computes its products in the 16-bit type, if there is one."""
        if self._autocast is None:
            return nullcontext()
        return torch.autocast(next(self._model.parameters()).device.type, dtype=self._autocast)

    def score(self, rows: Sequence[Row], *, graph: bool = False, checkpointing: bool = False) -> ScoredRows:
        """Log-probs of the rows' completions; with `graph` they can be pushed back without another forward pass."""
        batch = self._batch(rows)
        with torch.set_grad_enabled(graph), self.autocast(), _checkpointed(self._layers if checkpointing else ()):
            if self._head is None:
                logprobs_M = self._own_logprobs(batch)
                own = logprobs_M if graph else None
                return ScoredRows(batch.tokens_M, logprobs_M.detach(), torch.zeros_like(logprobs_M), own)
            hidden_MH = self._hidden(batch)
        logprobs_M, normalizers_M = self._head.logprobs(hidden_MH.detach(), batch.tokens_M)
        return ScoredRows(batch.tokens_M, logprobs_M, normalizers_M, hidden_MH if graph else None, hidden_MH.detach())

    def backward(self, scored: ScoredRows, coefficients_M: Tensor, *, extra_gradient_MH: Tensor | None = None) -> None:
        """Add the gradient of Σ coefficient · log-prob to the parameters. `scored` must hold a graph.

        `extra_gradient_MH` is another term's gradient towards the hidden states.
        """
        assert scored.graph is not None
        if self._head is None:
            torch.autograd.backward(scored.graph, coefficients_M)
            return
        hidden_MH = scored.graph.detach()
        gradient_MH = self._head.backward(hidden_MH, scored.tokens_M, scored.normalizers_M, coefficients_M)
        if extra_gradient_MH is not None:
            gradient_MH = gradient_MH + extra_gradient_MH.to(gradient_MH.dtype)
        torch.autograd.backward(scored.graph, gradient_MH)

    def regraph(self, rows: Sequence[Row], normalizers_M: Tensor, *, checkpointing: bool = False) -> ScoredRows:
        """The graph of rows scored before, without scoring them again."""
        if self._head is None:
            return self.score(rows, graph=True, checkpointing=checkpointing)
        batch = self._batch(rows)
        with torch.enable_grad(), self.autocast(), _checkpointed(self._layers if checkpointing else ()):
            hidden_MH = self._hidden(batch)
        return ScoredRows(batch.tokens_M, torch.zeros_like(normalizers_M), normalizers_M, hidden_MH)

    def _hidden(self, batch: _Batch) -> Tensor:
        """Hidden states that predict the completion tokens, (M, H)."""
        hidden_NLH: Tensor = self._model.base_model(**batch.inputs, use_cache=False).last_hidden_state
        return hidden_NLH.flatten(0, 1)[batch.places_M]

    def _own_logprobs(self, batch: _Batch) -> Tensor:
        """Log-probs through the model's own logits."""
        logits_NLV = self._model(**batch.inputs, use_cache=False).logits
        logits_MV = logits_NLV.flatten(0, 1)[batch.places_M].float() / self._temperature
        picked_M1 = torch.log_softmax(logits_MV, dim=-1).gather(1, batch.tokens_M[:, None])
        return picked_M1[:, 0]

    def _batch(self, rows: Sequence[Row]) -> _Batch:
        return _packed(rows, self._device) if self._packs else _padded(rows, self._device)

    @property
    def _device(self) -> torch.device:
        device: torch.device = next(self._model.parameters()).device
        return device


@dataclass(frozen=True, slots=True)
class _Batch:
    """Rows as the model takes them. The last token of a row predicts nothing and is left out."""

    inputs: dict[str, Tensor]
    places_M: Tensor
    """Index of the position that predicts each completion token, in the flattened input."""
    tokens_M: Tensor


def _padded(rows: Sequence[Row], device: torch.device) -> _Batch:
    """Rows padded on the right: a causal model never attends there, so no mask is needed."""
    inputs = [joined(prompt, completion[:-1]) for prompt, completion in rows]
    ids_NL = pad_right(inputs, device)
    length = ids_NL.shape[1]
    starts = [n * length + len(prompt) - 1 for n, (prompt, _) in enumerate(rows)]
    return _Batch({"input_ids": ids_NL}, *_places(rows, starts, device))


def _packed(rows: Sequence[Row], device: torch.device) -> _Batch:
    """Rows joined to one without padding; positions that start again at 0 separate them."""
    inputs = [joined(prompt, completion[:-1]) for prompt, completion in rows]
    ids_1L = torch.from_numpy(np.concatenate(inputs))[None].to(device)
    positions_1L = torch.cat([torch.arange(len(row)) for row in inputs])[None].to(device)
    starts, end = [], 0
    for row, (prompt, _) in zip(inputs, rows, strict=True):
        starts.append(end + len(prompt) - 1)
        end += len(row)
    return _Batch({"input_ids": ids_1L, "position_ids": positions_1L}, *_places(rows, starts, device))


def _places(rows: Sequence[Row], starts: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Places and tokens of the completions, given where each completion's first token is predicted."""
    places = [torch.arange(start, start + len(completion)) for start, (_, completion) in zip(starts, rows, strict=True)]
    tokens = [torch.from_numpy(np.asarray(completion, dtype=np.int64)) for _, completion in rows]
    return torch.cat(places).to(device), torch.cat(tokens).to(device)


@contextmanager
def _checkpointed(layers: Sequence[Any]) -> Iterator[None]:
    """Keep only the inputs of these layers for the backward pass, which computes them again.

    transformers' own switch works in training mode alone, and that would turn on dropout.
    """
    try:
        for layer in layers:
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
        yield
    finally:
        for layer in layers:
            del layer.forward
