"""Acceptance criteria of this project's losses on chain4, and their verdicts on a file of results.

Criteria on the baseline keep the benchmark honest: if staleness hardly hurt GRPO, tolerating it would prove nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from p2prl_lab.bench.staleness.bases import BASELINE
from p2prl_lab.bench.staleness.results import ResultFile, Setting
from p2prl_lab.bench.staleness.summary import on_policy_last
from p2prl_lab.bench.training.training_plan import TrainingPlan

CRITERIA_TASK = "chain4"
LEAST_SEEDS = 5

_DEFAULT = TrainingPlan()
_FAST = TrainingPlan(learning_rate=1e-3)
_LONG = TrainingPlan(updates=400)


@dataclass(frozen=True, kw_only=True)
class Criterion:
    """One bound on one figure."""

    text: str
    methods: tuple[str, ...]
    """Methods, one of which must meet the bound."""
    delay: str
    figure: Literal["last", "loss"]
    """last: mean reward at the end; loss: share of it lost against on-policy GRPO."""
    bound: float
    at_least: bool
    """True: the figure must reach `bound`; False: it must not exceed it."""
    plan: TrainingPlan = _DEFAULT


CRITERIA = (
    Criterion(
        text="on-policy GRPO learns", methods=("grpo",), delay="const:0", figure="last", bound=0.86, at_least=True
    ),
    Criterion(
        text="on-policy GEPO-T learns", methods=("gepo_t",), delay="const:0", figure="last", bound=0.86, at_least=True
    ),
    Criterion(text="delay hurts GRPO", methods=("grpo",), delay="const:64", figure="loss", bound=0.12, at_least=True),
    Criterion(
        text="GEPO-T, constant 64", methods=("gepo_t",), delay="const:64", figure="loss", bound=0.04, at_least=False
    ),
    Criterion(
        text="GEPO-T, constant 128", methods=("gepo_t",), delay="const:128", figure="loss", bound=0.04, at_least=False
    ),
    Criterion(
        text="GEPO-T, long-tailed", methods=("gepo_t",), delay="weibull:256", figure="loss", bound=0.03, at_least=False
    ),
    Criterion(
        text="GEPO-T or gex, log-normal",
        methods=("gepo_t", "gex"),
        delay="lognorm:64",
        figure="loss",
        bound=0.05,
        at_least=False,
    ),
    Criterion(
        text="gex with brake, learning rate 1e-3",
        methods=("gex+brake",),
        delay="const:64",
        figure="loss",
        bound=0.05,
        at_least=False,
        plan=_FAST,
    ),
    Criterion(
        text="delay hurts GRPO, learning rate 1e-3",
        methods=("grpo",),
        delay="const:64",
        figure="loss",
        bound=0.20,
        at_least=True,
        plan=_FAST,
    ),
    Criterion(
        text="GEPO-T or gex with brake, 400 updates",
        methods=("gepo_t", "gex+brake"),
        delay="const:64",
        figure="loss",
        bound=0.08,
        at_least=False,
        plan=_LONG,
    ),
    Criterion(
        text="delay hurts GRPO, 400 updates",
        methods=("grpo",),
        delay="const:64",
        figure="loss",
        bound=0.12,
        at_least=True,
        plan=_LONG,
    ),
    Criterion(
        text="REINFORCE without weights collapses",
        methods=("reinforce",),
        delay="const:64",
        figure="last",
        bound=0.30,
        at_least=False,
    ),
)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A criterion and its measured figure."""

    criterion: Criterion
    measured: float | None
    """Figure of the best method; None when too few seeds were run."""
    met: bool | None
    """None: not measured, or not met and another of its methods is not measured."""


def runs_needed() -> list[tuple[str, str, TrainingPlan]]:
    """(method, delay, plan) of every run the criteria need, each once, baselines first."""
    wanted: dict[tuple[str, str, TrainingPlan], None] = {}
    for criterion in CRITERIA:
        if criterion.figure == "loss":
            wanted[(*BASELINE, criterion.plan)] = None
        for method in criterion.methods:
            wanted[(method, criterion.delay, criterion.plan)] = None
    return list(wanted)


def judge(results: ResultFile, seeds: range) -> list[Verdict]:
    """One verdict for each criterion, from the results of `seeds`; fewer than LEAST_SEEDS results give no figure."""
    return [_verdict(criterion, results, seeds) for criterion in CRITERIA]


def _verdict(criterion: Criterion, results: ResultFile, seeds: range) -> Verdict:
    figures = [
        figure for method in criterion.methods if (figure := _figure(criterion, method, results, seeds)) is not None
    ]
    if not figures:
        return Verdict(criterion=criterion, measured=None, met=None)
    measured = max(figures) if criterion.at_least else min(figures)
    met = measured >= criterion.bound if criterion.at_least else measured <= criterion.bound
    undecided = not met and len(figures) < len(criterion.methods)
    return Verdict(criterion=criterion, measured=measured, met=None if undecided else met)


def _figure(criterion: Criterion, method: str, results: ResultFile, seeds: range) -> float | None:
    found = results.of(Setting.of(CRITERIA_TASK, method, criterion.delay, criterion.plan), seeds)
    if len(found) < LEAST_SEEDS:
        return None
    last = fmean(result.last for result in found)
    if criterion.figure == "last":
        return last
    baseline = on_policy_last(results, CRITERIA_TASK, criterion.plan, [result.seed for result in found])
    return 1 - last / baseline if baseline else None
