"""Score completions in micro-batches, and push known coefficients on their log-probs back into the model's gradient.

This is the policy's side of a training step that never holds the logits of a batch: the loss is computed on the
log-probs alone, and gives one coefficient for each. Models whose logits are more than a linear layer of the hidden
states (soft caps, scales) go through their own logits instead, which costs memory for each micro-batch.

Shapes: N rows, L tokens of the longest, M completion tokens of all rows, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from p2prl.models.logprobs.policy_logprobs import TokenIds, joined, pad_right
from p2prl.models.logprobs.scoring_model import ScoringModel

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
    """Log-normalizers, with which `PolicyForward.score` makes the graph again; zeros from a model's own logits."""
    graph: Tensor | None
    """Log-probs with their graph; None without a graph."""
    hidden_MH: Tensor | None = None
    """Hidden states that the tokens were chosen from, in that graph; None from a model's own logits."""


class PolicyForward:
    """A causal LM that scores rows and takes gradients through them."""

    def __init__(self, scoring: ScoringModel, *, packs: bool | None = None) -> None:
        """`packs` joins rows to one instead of padding them; None does so where the attention's kernel then computes
        less."""
        self._scoring = scoring
        model = scoring.model
        self._layers = [layer for layer in model.modules() if isinstance(layer, GradientCheckpointingLayer)]
        self._packs = model.config._attn_implementation in _VARLEN_ATTENTION if packs is None else packs

    def score(
        self,
        rows: Sequence[Row],
        *,
        graph: bool = False,
        checkpointing: bool = False,
        normalizers_M: Tensor | None = None,
    ) -> ScoredRows:
        """Log-probs of the rows' completions; with `graph` they can be pushed back without another forward pass.

        With the normalizers of an earlier pass only the graph is made: the log-probs are not computed again, and zero.
        """
        batch = self._batch(rows)
        with torch.set_grad_enabled(graph), checkpointed(self._layers if checkpointing else ()):
            logprobs_M, normalizers_M, hidden_MH = self._scoring(
                batch.inputs, batch.places_M, batch.tokens_M, normalizers_M
            )
        return ScoredRows(batch.tokens_M, logprobs_M.detach(), normalizers_M, logprobs_M if graph else None, hidden_MH)

    def backward(self, scored: ScoredRows, coefficients_M: Tensor, *, extra_gradient_MH: Tensor | None = None) -> None:
        """Add the gradient of Σ coefficient · log-prob to the parameters. `scored` must hold a graph.

        `extra_gradient_MH` is another term's gradient towards the hidden states.
        """
        assert scored.graph is not None
        if extra_gradient_MH is None:
            torch.autograd.backward(scored.graph, coefficients_M)
            return
        assert scored.hidden_MH is not None
        extra_MH = extra_gradient_MH.to(scored.hidden_MH.dtype)
        torch.autograd.backward((scored.graph, scored.hidden_MH), (coefficients_M, extra_MH))

    def _batch(self, rows: Sequence[Row]) -> Batch:
        device = next(self._scoring.parameters()).device
        return _packed(rows, device) if self._packs else padded(rows, device)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows as the model takes them. The last token of a row predicts nothing and is left out."""

    inputs: dict[str, Tensor]
    places_M: Tensor
    """Index of the position that predicts each completion token, in the flattened input."""
    tokens_M: Tensor


def padded(rows: Sequence[Row], device: torch.device) -> Batch:
    """Rows padded on the right: a causal model never attends there, so no mask is needed."""
    inputs = [joined(prompt, completion[:-1]) for prompt, completion in rows]
    ids_NL = pad_right(inputs, device)
    length = ids_NL.shape[1]
    starts = [n * length + len(prompt) - 1 for n, (prompt, _) in enumerate(rows)]
    return Batch({"input_ids": ids_NL}, *_places(rows, starts, device))


def _packed(rows: Sequence[Row], device: torch.device) -> Batch:
    """Rows joined to one without padding; positions that start again at 0 separate them."""
    inputs = [joined(prompt, completion[:-1]) for prompt, completion in rows]
    ids_1L = torch.from_numpy(np.concatenate(inputs))[None].to(device)
    positions_1L = torch.cat([torch.arange(len(row)) for row in inputs])[None].to(device)
    starts, end = [], 0
    for row, (prompt, _) in zip(inputs, rows, strict=True):
        starts.append(end + len(prompt) - 1)
        end += len(row)
    return Batch({"input_ids": ids_1L, "position_ids": positions_1L}, *_places(rows, starts, device))


def _places(rows: Sequence[Row], starts: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Places and tokens of the completions, given where each completion's first token is predicted."""
    places = [torch.arange(start, start + len(completion)) for start, (_, completion) in zip(starts, rows, strict=True)]
    tokens = [torch.from_numpy(np.asarray(completion, dtype=np.int64)) for _, completion in rows]
    return torch.cat(places).to(device), torch.cat(tokens).to(device)


@contextmanager
def checkpointed(layers: Sequence[Any]) -> Iterator[None]:
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
