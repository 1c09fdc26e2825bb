"""The port between a rank and how its plan computes a policy. All ranks call it alike, so their collectives meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from p2prl.learner.training.micro_batches import MicroBatchRule
from p2prl.models.logprobs.policy_forward import Row
from p2prl.ranks.sharded_model import Shard

EMPTY_ROW: Row = ((0,), (0,))
"""Stands for the rows of an empty micro-batch. Its coefficients are zero."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicySettings:
    """How a policy is computed."""

    temperature: float
    """Of sampling."""
    autocast: torch.dtype | None
    """A 16-bit type for the products of a float32 model."""
    zero: int
    """2 or 3, as in `ParallelConfig`."""


@dataclass(frozen=True, slots=True)
class Found:
    """Scores of a batch, (N, T), whole on every rank."""

    logprobs_NT: Tensor
    values_NT: Tensor
    """Zeros without a value head, as the averages."""
    average_NT: Tensor


class RankPolicy(Protocol):
    """A policy over the ranks of a plan."""

    @property
    def shards(self) -> Sequence[Shard]:
        """This rank's part of the weights it holds, trained or not, in the model's order."""
        ...

    def logprobs(self, rows: Sequence[Row], rule: MicroBatchRule) -> Tensor:
        """Log-probs (N, T), nats, on every rank. No gradient."""
        ...

    def score(self, rows: Sequence[Row], rule: MicroBatchRule) -> Found:
        """Score a batch that `push` will be called for."""
        ...

    def push(self, coefficients_NT: Tensor, value_NT: Tensor) -> None:
        """Add the gradient of Σ coefficient · log-prob + Σ value coefficient · value over the batch scored last."""
        ...

    def forget(self) -> None:
        """Free the graphs of a batch whose coefficients will not come."""
        ...

    def before_step(self) -> None:
        """Weights are about to change."""
        ...
