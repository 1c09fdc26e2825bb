"""A causal language model whose forward pass ends in the log-probs of given tokens.

The body, the head and the head's gradient all run inside `forward`, so hooks of the module see every use of a weight.
A module that shards its weights gathers them there.

Shapes: N rows, L tokens of the longest, M chosen positions, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from p2prl.models.logprobs.large_gradients import use_in
from p2prl.models.logprobs.linear_head import find_linear_head
from p2prl.models.logprobs.training_head import TrainingHead


class ScoringModel(nn.Module):
    """A Hugging Face causal LM that scores tokens at a temperature."""

    def __init__(self, model: Any, *, temperature: float, autocast: torch.dtype | None = None) -> None:
        """`autocast` is a 16-bit type for the products of a float32 model."""
        super().__init__()
        self.model = model
        self._temperature = temperature
        self._autocast = autocast
        use_in(model.get_input_embeddings())
        head = find_linear_head(model)
        self.has_linear_head = head is not None and head.weight.is_leaf
        """Whether the logits are a linear layer of the hidden states, which are then known."""

    def autocast(self) -> AbstractContextManager[Any]:
        """Context in which the model computes its products in the 16-bit type, if there is one."""
        if self._autocast is None:
            return nullcontext()
        return torch.autocast(next(self.model.parameters()).device.type, dtype=self._autocast)

    def forward(
        self, inputs: Mapping[str, Tensor], places_M: Tensor, tokens_M: Tensor, normalizers_M: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Log-probs (M,) float32 of tokens at places of the flattened input, normalizers (M,), hidden states (M, H).

        Log-probs and hidden states are in the graph where there is one. Known normalizers save computing the logits:
        the log-probs are zeros then, with the right gradient. Models without a linear head have no hidden states here,
        and zeros for normalizers.
        """
        if not self.has_linear_head:
            logprobs_M = self._through_logits(inputs, places_M, tokens_M)
            return logprobs_M, torch.zeros_like(logprobs_M), None
        with self.autocast():
            hidden_NLH = self.model.base_model(**inputs, use_cache=False).last_hidden_state
            hidden_MH = hidden_NLH.flatten(0, 1)[places_M]
        head = self._head()
        if normalizers_M is None:
            logprobs_M, normalizers_M = head.logprobs(hidden_MH.detach(), tokens_M)
        else:
            logprobs_M = torch.zeros_like(normalizers_M)
        if torch.is_grad_enabled():
            logprobs_M = head.attach(hidden_MH, tokens_M, logprobs_M, normalizers_M)
        return logprobs_M, normalizers_M, hidden_MH

    def _head(self) -> TrainingHead:
        """The head with the weights of this pass, which may have been gathered for it."""
        linear = self.model.get_output_embeddings()
        return TrainingHead(linear.weight, linear.bias, self._temperature, self._autocast or linear.weight.dtype)

    def _through_logits(self, inputs: Mapping[str, Tensor], places_M: Tensor, tokens_M: Tensor) -> Tensor:
        with self.autocast():
            logits_NLV = self.model(**inputs, use_cache=False).logits
            logits_MV = logits_NLV.flatten(0, 1)[places_M].float() / self._temperature
            return torch.log_softmax(logits_MV, dim=-1).gather(1, tokens_M[:, None])[:, 0]
