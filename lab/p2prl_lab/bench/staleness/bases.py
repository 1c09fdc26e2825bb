"""On-policy runs that a method under delay is compared with, and its loss against each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from p2prl.errors import ConfigError
from p2prl_lab.bench.staleness.learning_speed import area
from p2prl_lab.bench.staleness.methods import parse_method
from p2prl_lab.bench.staleness.results import ResultFile, Setting, version_of
from p2prl_lab.bench.staleness.seed_log import SeedResult
from p2prl_lab.bench.training.environments import environment_by_name
from p2prl_lab.bench.training.training_plan import FINAL_EVALUATIONS, TrainingPlan

ON_POLICY = "const:0"
"""The delay of an on-policy run."""

BASELINE = ("grpo", ON_POLICY)
"""Baseline that every loss is relative to, in the same setting."""


@dataclass(frozen=True, kw_only=True)
class Base:
    """An on-policy run on the same seeds, and the share of its reward that the method loses; many fields because it is
    part of a row of a table.

    Errors are standard errors over seeds, each seed compared with the base on that seed; None for one seed. A loss is
    None where the base earns nothing.
    """

    method: str
    learning_rate: float
    last: float
    greedy: float
    pass_at_8: float
    entropy: float
    loss: float | None
    """1 − sampled reward / the base's."""
    loss_error: float | None
    greedy_loss: float | None
    """1 − greedy reward / the base's."""
    greedy_loss_error: float | None
    area: float | None
    """Area under greedy over the same updates as the row's; see `learning_speed.area`."""
    area_loss: float | None
    """1 − the row's area / the base's."""
    area_loss_error: float | None


def base_of(
    base: Setting,
    base_results: Sequence[SeedResult],
    found: Sequence[SeedResult],
    *,
    evaluations: int = FINAL_EVALUATIONS,
    area_from: int = 0,
) -> Base | None:
    """The comparison of `found` with a base on the same seeds in the same order; None when it lacks one of them.

    All figures are means over the last `evaluations`, but for areas, which begin at update `area_from`.
    """
    if [result.seed for result in base_results] != [result.seed for result in found]:
        return None
    environment = environment_by_name(base.task)
    own_rate = parse_method(base.method, max_completion_tokens=environment.max_new_tokens).additions.get("lr")

    def ends(results: Sequence[SeedResult], measure: str) -> list[float]:
        return [result.last_of(measure, evaluations) for result in results]

    loss, loss_error = _loss(ends(found, "sampled"), ends(base_results, "sampled"))
    greedy_loss, greedy_loss_error = _loss(ends(found, "greedy"), ends(base_results, "greedy"))
    areas, own_areas = areas_of(base_results, area_from), areas_of(found, area_from)
    area_loss, area_loss_error = _loss(own_areas, areas) if areas and own_areas else (None, None)
    return Base(
        method=base.method,
        learning_rate=base.learning_rate if own_rate is None else own_rate,
        last=_mean(base_results, "sampled", evaluations),
        greedy=_mean(base_results, "greedy", evaluations),
        pass_at_8=_mean(base_results, "pass_at_8", evaluations),
        entropy=_mean(base_results, "entropy", evaluations),
        loss=loss,
        loss_error=loss_error,
        greedy_loss=greedy_loss,
        greedy_loss_error=greedy_loss_error,
        area=fmean(areas) if areas else None,
        area_loss=area_loss,
        area_loss_error=area_loss_error,
    )


def areas_of(results: Sequence[SeedResult], start: int) -> list[float]:
    """Area under greedy from update `start` on, for each seed; empty where a run ends before."""
    areas = [area(result.curve("greedy"), start) for result in results]
    known = [each for each in areas if each is not None]
    return known if len(known) == len(areas) else []


def best_on_policy(results: ResultFile, task: str, plan: TrainingPlan, seeds: Sequence[int]) -> Setting | None:
    """The on-policy run of the best greedy reward on these seeds, of any method at any learning rate in the file.

    It has the task, length and evaluations of the plan. Of equals the one with more sampled reward.
    """
    candidates = []
    for setting in results.settings():
        found = results.of(setting, seeds) if setting.delay == ON_POLICY and setting.task == task else []
        if len(found) == len(seeds) > 0 and _comparable(setting, plan):
            candidates.append((_mean(found, "greedy"), _mean(found, "sampled"), setting))
    return max(candidates, key=lambda candidate: candidate[:2])[2] if candidates else None


def _comparable(setting: Setting, plan: TrainingPlan) -> bool:
    try:
        version = version_of(setting.task, setting.method)
    except ConfigError:  # a loss of a package that is no longer installed
        return False
    names = ("updates", "evaluate_every", "evaluation_prompts", "final_prompts", "group_size", "prompts")
    return setting.version == version and all(getattr(setting, name) == getattr(plan, name) for name in names)


def _mean(found: Sequence[SeedResult], measure: str, evaluations: int = FINAL_EVALUATIONS) -> float:
    """Mean over seeds of one of `MEASURES` in the last `evaluations`."""
    return fmean(result.last_of(measure, evaluations) for result in found)


def _loss(found: Sequence[float], base: Sequence[float]) -> tuple[float | None, float | None]:
    """The share of the base's figures that is lost, and its standard error; each seed is compared with itself."""
    # A hard seed is hard for every method, so comparing per seed removes most of that noise.
    shares = [1 - own / other for own, other in zip(found, base, strict=True) if other]
    return (
        1 - sum(found) / sum(base) if shares else None,
        stdev(shares) / len(shares) ** 0.5 if len(shares) > 1 else None,
    )
