"""Log of several seeds trained side by side, and each seed's result.

Shape legend: M seeds, N completions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, median

import torch
from torch import Tensor

from p2prl.algorithms.batch import LossOutput
from p2prl.algorithms.ratios import effective_sample_size
from p2prl.models.hardware.device_choice import device_class
from p2prl_lab.bench.staleness.collapse import collapsed_at
from p2prl_lab.bench.staleness.measures import Evaluation, storable
from p2prl_lab.bench.training.training_plan import FINAL_EVALUATIONS


@dataclass(frozen=True, kw_only=True)
class SeedResult:
    """Result of one seed."""

    seed: int
    evaluations: tuple[Evaluation, ...]
    """From update 0."""
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
    torch: str = ""
    """Release of torch that the run was made with; empty in older results."""
    machine: str = ""
    """Card, or type of processor; empty in older results."""

    def curve(self, measure: str) -> tuple[tuple[int, float], ...]:
        """(update, value) of one of `MEASURES`."""
        return tuple((evaluation.update, float(getattr(evaluation, measure))) for evaluation in self.evaluations)

    def last_of(self, measure: str, evaluations: int = FINAL_EVALUATIONS) -> float:
        """Mean of one of `MEASURES` over the last evaluations, three unless it says otherwise."""
        return fmean(value for _, value in self.curve(measure)[-evaluations:])

    @property
    def last(self) -> float:
        """Mean sampled reward of the last three evaluations."""
        return self.last_of("sampled")

    @property
    def best(self) -> float:
        """Best sampled reward of an evaluation."""
        return max(evaluation.sampled for evaluation in self.evaluations)

    @cached_property
    def collapsed_at(self) -> int | None:
        """See `collapse.collapsed_at`; None for a run that did not collapse."""
        return collapsed_at(self.evaluations)


class SeedLog:
    """Figures of each seed, update by update."""

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self._seeds, self._machine = tuple(seeds), device_class(device)
        self._evaluations: list[list[Evaluation]] = [[] for _ in seeds]
        self._grad_norms: list[Tensor] = []
        self._figures: list[list[tuple[float, float, float]]] = [[] for _ in seeds]
        self._tapered: list[list[float | None]] = [[] for _ in seeds]
        self._seen = 0
        """Updates before the last evaluation."""

    def evaluated(self, evaluations: Sequence[Evaluation]) -> None:
        """Add one evaluation of each seed, and to it the training figures since the last one."""
        for index, evaluation in enumerate(evaluations):
            norms = [float(norms_M[index]) for norms_M in self._grad_norms[self._seen :]]
            kls = [kl for _, _, kl in self._figures[index][self._seen :]]
            tapered = [share for share in self._tapered[index][self._seen :] if share is not None]
            if norms:
                evaluation = replace(
                    evaluation,
                    grad_norm=storable(median(norms)),
                    kl=storable(fmean(kls)),
                    failures_below_05=fmean(tapered) if tapered else None,
                )
            self._evaluations[index].append(evaluation)
        self._seen = len(self._grad_norms)

    def stepped(self, grad_norms_M: Tensor) -> None:
        """Add the gradient norms of one update."""
        self._grad_norms.append(grad_norms_M)

    def trained(
        self, index: int, output: LossOutput, sequence_log_ratios_N: Tensor, kl: Tensor, tapered: float | None
    ) -> None:
        """Add the diagnostics of one seed's batch; `tapered`: see `Evaluation.failures_below_05`."""
        self._tapered[index].append(tapered)
        ess = float(effective_sample_size(sequence_log_ratios_N)) / sequence_log_ratios_N.numel()
        self._figures[index].append((float(output.metrics["weight_max"]), ess, float(kl)))

    def results(self) -> list[SeedResult]:
        """One result for each seed, in the order given."""
        return [self._result(index) for index in range(len(self._seeds))]

    def _result(self, index: int) -> SeedResult:
        weights, ess, kl = zip(*self._figures[index], strict=True)
        return SeedResult(
            seed=self._seeds[index],
            evaluations=tuple(self._evaluations[index]),
            grad_norm_max=max(storable(float(norms_M[index])) for norms_M in self._grad_norms),
            weight_max=max(map(storable, weights)),
            ess_min=min(map(storable, ess)),
            kl_mean=storable(sum(kl) / len(kl)),
            kl_max=max(map(storable, kl)),
            torch=str(torch.__version__),  # a class of its own, which no file can hold
            machine=self._machine,
        )
