"""The first method against every other under each law of delay: paired by seed, with Holm's correction over all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from p2prl_lab.bench.staleness.bases import ON_POLICY, areas_of
from p2prl_lab.bench.staleness.delay_laws import parse_law
from p2prl_lab.bench.staleness.paired import Paired, holm, paired
from p2prl_lab.bench.staleness.results import ResultFile, Setting
from p2prl_lab.bench.staleness.seed_log import SeedResult
from p2prl_lab.bench.training.training_plan import TrainingPlan

MEASURES = ("area", "greedy", "pass_at_8")
"""Compared measures, the primary one first. Each is a family of tests of its own; `greedy` and `pass_at_8` are of the
last three evaluations."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One method minus another, in reward."""

    method: str
    against: str
    delay: str
    measure: str
    seeds: int
    """Seeds that both have."""
    result: Paired
    p_holm: float | None = None
    """p after Holm's correction over all comparisons of the measure."""


def comparisons_of(
    results: ResultFile, task: str, methods: Sequence[str], delays: Sequence[str], plan: TrainingPlan, seeds: range
) -> list[Comparison]:
    """The first of the methods against each other one under every law, for each of `MEASURES`."""
    found = list[Comparison]()
    for measure in MEASURES:
        family = [
            compared
            for delay in delays
            for other in methods[1:]
            if (compared := _compared(results, measure, task, (methods[0], other), delay, plan, seeds))
        ]
        adjusted = holm([each.result.p for each in family])
        found += [replace(each, p_holm=p) for each, p in zip(family, adjusted, strict=True)]
    return found


def _compared(
    results: ResultFile,
    measure: str,
    task: str,
    pair: tuple[str, str],
    delay: str,
    plan: TrainingPlan,
    seeds: range,
) -> Comparison | None:
    own, other = (
        {result.seed: result for result in results.of(Setting.of(task, method, delay, plan), seeds)} for method in pair
    )
    both = sorted(set(own) & set(other))
    values, against = (_values([known[seed] for seed in both], measure, delay) for known in (own, other))
    if not values:
        return None
    return Comparison(
        method=pair[0],
        against=pair[1],
        delay=delay,
        measure=measure,
        seeds=len(both),
        result=paired(values, against),
    )


def _values(found: Sequence[SeedResult], measure: str, delay: str) -> list[float]:
    if measure == "area":
        return areas_of(found, parse_law(delay).settled)
    return [result.last_of(measure) for result in found]


def as_markdown(comparisons: Sequence[Comparison]) -> str:
    """The comparisons as a Markdown table, in points of 100."""
    lines = ["| minus | law | measure | points | ± | p | p (Holm) | 90 % |", "|" + "---|" * 8]
    for each in comparisons:
        result, law = each.result, "on policy" if each.delay == ON_POLICY else each.delay
        chances = ["–" if p is None else f"{p:.3f}" for p in (result.p, each.p_holm)]
        ends = "–" if result.low is None or result.high is None else f"{100 * result.low:.1f} … {100 * result.high:.1f}"
        error = "–" if result.error is None else f"{100 * result.error:.1f}"
        lines.append(
            f"| {each.against} | {law} | {each.measure} | {100 * result.difference:.1f} | {error} "
            f"| {' | '.join(chances)} | {ends} |"
        )
    return "\n".join(lines) + "\n"
