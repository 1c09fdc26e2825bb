"""A loss as the registry knows it: its function, its config, and the advantage and aggregation of its paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from p2prl.algorithms.advantages import AdvantageKind
from p2prl.algorithms.aggregation import AggregationConfig, AggregationKind
from p2prl.algorithms.batch import LossOutput, RolloutBatch

LossFunction = Callable[[Tensor, RolloutBatch, Any, AggregationConfig], LossOutput]
"""(policy_logprobs_BGT, batch, the loss's own config, aggregation) -> LossOutput. Pure."""


@dataclass(frozen=True, kw_only=True)
class LossSpec:
    """One loss as the registry knows it."""

    name: str
    """Name in a run's configuration."""
    function: LossFunction
    """The loss."""
    config_type: type[Any]
    """Its frozen config; all fields have defaults."""
    advantage: AdvantageKind = "mean"
    """The paper's advantage."""
    aggregation: AggregationKind = "seq_mean"
    """The paper's aggregation."""
    advantages: frozenset[AdvantageKind] | None = None
    """Advantages that make sense with the loss; None: all."""
    aggregations: frozenset[AggregationKind] | None = None
    """Aggregations that make sense with the loss; None: all."""
    uses_behavior_logprobs: bool = True
    """False: can be used for groups whose log-probs are not trusted yet."""
    needs_whole_groups: bool = False
    """True: a part of a batch must not split a group. For trainers that split batches."""
    token_advantages: bool = False
    """True: the advantage may differ from token to token. Its value stands for each token's own log-prob, so a loss
    whose gradient goes through a weight of the whole completion, or that compares completions, has none."""
    result_version: int = 1
    """Incremented when the loss's numbers change, so that benchmarks do not reuse results of the older loss."""
