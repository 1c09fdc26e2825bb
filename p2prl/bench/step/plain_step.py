"""A plain training step: one forward pass, the loss on all log-probs, one backward pass, fused AdamW.

Shares with the product the loss pipeline and the forward pass over padded rows, but neither micro-batches nor tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from p2prl.learner.training.loss_pipeline import LossPipeline
from p2prl.learner.training.training_group import TrainingGroup, rollouts_of, rows_of
from p2prl.models.logprobs.policy_logprobs import completion_logprobs

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class PlainStep:
    """A model with its loss and optimizer."""

    def __init__(self, model: PreTrainedModel, loss: LossPipeline, *, reference: PreTrainedModel | None = None) -> None:
        self._model = model
        self._loss = loss
        self._reference = reference
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.0, fused=True)

    def update(self, groups: Sequence[TrainingGroup]) -> None:
        """Take one step."""
        self.gradient(groups)
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def gradient(self, groups: Sequence[TrainingGroup]) -> None:
        """Compute the gradient of a batch."""
        self._model.zero_grad(set_to_none=True)
        prompts, completions = zip(*rows_of(groups), strict=True)
        shape = (len(groups), len(groups[0].completions), -1)
        reference_BGT = None
        if self._reference is not None:
            with torch.no_grad():
                reference_BGT = completion_logprobs(self._reference, prompts, completions, 1.0)[0].reshape(shape)
        logprobs_NT, _ = completion_logprobs(self._model, prompts, completions, 1.0)
        rollouts = rollouts_of(groups, logprobs_NT.device, reference_BGT=reference_BGT)
        self._loss.estimate(logprobs_NT.reshape(shape), rollouts).loss.backward()  # type: ignore[no-untyped-call]
