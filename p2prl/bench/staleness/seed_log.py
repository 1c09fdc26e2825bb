"""Log of several seeds trained side by side, and each seed's result.

Shape legend: M seeds, N completions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from p2prl.algorithms.batch import LossOutput
from p2prl.algorithms.ratios import effective_sample_size
from p2prl.bench.training.training_plan import FINAL_EVALUATIONS


@dataclass(frozen=True, kw_only=True)
class SeedResult:
    """Result of one seed."""

    seed: int
    curve: tuple[tuple[int, float], ...]
    """(update, reward on fresh prompts), from update 0."""
    grad_norm_max: float
    """Largest gradient norm before the clip."""
    weight_max: float
    """Largest effective weight of a token."""
    ess_min: float
    """Smallest ESS/n of the whole-sequence ratios of one update's completions."""
    kl_mean: float
    """Mean of log q − log p, nats per token: distance of the samplers' policies from the learner's."""
    kl_max: float
    """The same, at the worst update."""

    @property
    def last(self) -> float:
        """Mean reward of the last three evaluations."""
        return sum(reward for _, reward in self.curve[-FINAL_EVALUATIONS:]) / FINAL_EVALUATIONS

    @property
    def best(self) -> float:
        """Best evaluation."""
        return max(reward for _, reward in self.curve)


class SeedLog:
    """Figures of each seed, update by update."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self._seeds = tuple(seeds)
        self._curves: list[list[tuple[int, float]]] = [[] for _ in seeds]
        self._grad_norms: list[Tensor] = []
        self._figures: list[list[tuple[float, float, float]]] = [[] for _ in seeds]

    def evaluated(self, update: int, rewards: Sequence[float]) -> None:
        """Add one evaluation: the mean reward of each seed."""
        for curve, reward in zip(self._curves, rewards, strict=True):
            curve.append((update, reward))

    def stepped(self, grad_norms_M: Tensor) -> None:
        """Add the gradient norms of one update."""
        self._grad_norms.append(grad_norms_M)

    def trained(self, index: int, output: LossOutput, sequence_log_ratios_N: Tensor, kl: Tensor) -> None:
        """Add the diagnostics of one seed's batch."""
        ess = float(effective_sample_size(sequence_log_ratios_N)) / sequence_log_ratios_N.numel()
        self._figures[index].append((float(output.metrics["weight_max"]), ess, float(kl)))

    def results(self) -> list[SeedResult]:
        """One result for each seed, in the order given."""
        return [self._result(index) for index in range(len(self._seeds))]

    def _result(self, index: int) -> SeedResult:
        weights, ess, kl = zip(*self._figures[index], strict=True)
        return SeedResult(
            seed=self._seeds[index],
            curve=tuple(self._curves[index]),
            grad_norm_max=max(float(norms_M[index]) for norms_M in self._grad_norms),
            weight_max=max(weights),
            ess_min=min(ess),
            kl_mean=sum(kl) / len(kl),
            kl_max=max(kl),
        )
