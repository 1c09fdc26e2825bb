"""A plain training step: one forward pass, the loss on all log-probs, one backward pass, fused AdamW.

Shares with the product the loss pipeline and the forward pass over padded rows, but neither micro-batches nor tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from p2prl.learner.training.loss_pipeline import LossPipeline, Rollouts
from p2prl.learner.training.optimizer_step import TrainingGroup
from p2prl.models.logprobs.policy_logprobs import completion_logprobs


class PlainStep:
    """A model with its loss and optimizer."""

    def __init__(self, model: Any, loss: LossPipeline, *, reference: Any = None) -> None:
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
        prompts = [group.prompt_ids for group in groups for _ in group.completions]
        completions = [ids for group in groups for ids in group.completions]
        reference_NT = None
        if self._reference is not None:
            with torch.no_grad():
                reference_NT = completion_logprobs(self._reference, prompts, completions, 1.0)[0]
        logprobs_NT, mask_NT = completion_logprobs(self._model, prompts, completions, 1.0)
        shape = (len(groups), len(groups[0].completions), logprobs_NT.shape[1])
        behavior_NT = torch.zeros(logprobs_NT.shape)
        for row, values in zip(behavior_NT, (v for group in groups for v in group.behavior_logprobs), strict=True):
            row[: len(values)] = torch.tensor(values)
        device = logprobs_NT.device
        rollouts = Rollouts(
            behavior_logprobs_BGT=behavior_NT.reshape(shape).to(device),
            mask_BGT=mask_NT.reshape(shape).bool(),
            rewards_BG=torch.tensor([group.rewards for group in groups], device=device),
            staleness_BG=torch.tensor([[group.staleness] * shape[1] for group in groups], device=device),
            trust_B=torch.ones(shape[0], device=device),
            reference_logprobs_BGT=None if reference_NT is None else reference_NT.reshape(shape),
        )
        self._loss.estimate(logprobs_NT.reshape(shape), rollouts).loss.backward()  # type: ignore[no-untyped-call]
