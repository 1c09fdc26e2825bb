"""Losses for stale rollouts: pure functions of tensors, for p2prl's learner and for any other trainer.

Advantages, aggregation, guards and rewards are separate settings in separate files, so that two losses compared on one
benchmark differ only in the loss. Nothing here does I/O, reads a clock or moves a tensor to another device; torch is
the only dependency. `examples/foreign_trainer.py` uses these names in a training loop outside p2prl:

    build_loss          a loss by name, with its options, advantage and aggregation: an `Objective`
    RolloutBatch        input of a loss: rollouts of B groups as padded tensors
    LossOutput          result of a loss: the scalar, its metrics and the weight of every token
    microbatch          a part of a batch that fits the device; the losses of the parts add up
    reference_penalty   KL penalty toward a reference policy, added to any loss
    diagnose            effective sample size, KL and weights per bucket of staleness

A new loss is a function and a `LossSpec`: docs/extending.md. Guards around a loss are in `p2prl.algorithms.guards`.
"""

from p2prl.algorithms.advantages import AdvantageConfig, Advantages, compute_advantages
from p2prl.algorithms.aggregation import AggregationConfig
from p2prl.algorithms.batch import LossOutput, RolloutBatch
from p2prl.algorithms.diagnostics import StalenessDiagnostics, diagnose
from p2prl.algorithms.kl_penalty import ReferencePenaltyConfig, reference_penalty
from p2prl.algorithms.loss_registry import LOSSES, build_loss
from p2prl.algorithms.loss_spec import LossSpec
from p2prl.algorithms.microbatch import microbatch
from p2prl.algorithms.objective import Objective

__all__ = [
    "LOSSES",
    "AdvantageConfig",
    "Advantages",
    "AggregationConfig",
    "LossOutput",
    "LossSpec",
    "Objective",
    "ReferencePenaltyConfig",
    "RolloutBatch",
    "StalenessDiagnostics",
    "build_loss",
    "compute_advantages",
    "diagnose",
    "microbatch",
    "reference_penalty",
]
