"""What the losses of this project must achieve on chain4, and whether a file of results shows it.

The demands on the baseline keep the benchmark honest: were GRPO hardly hurt by delay, no other loss would be worth
anything for withstanding it.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from p2prl.bench.staleness.results import ResultFile, Setting
from p2prl.bench.staleness.stale_training import TrainingPlan
from p2prl.bench.staleness.summary import BASELINE, on_policy_last

DEMANDED_TASK = "chain4"
LEAST_SEEDS = 5

_CALM = TrainingPlan()
_AGGRESSIVE = TrainingPlan(learning_rate=1e-3)
_LONG = TrainingPlan(updates=400)


@dataclass(frozen=True, kw_only=True)
class Demand:
    """One bound on one figure."""

    text: str
    methods: tuple[str, ...]
    """Any one of them may meet it."""
    delay: str
    figure: Literal["last", "loss"]
    """last: mean reward at the end; loss: relative to on-policy GRPO."""
    bound: float
    at_least: bool
    """Whether `bound` is the least value that meets it, rather than the largest."""
    plan: TrainingPlan = _CALM


DEMANDS = (
    Demand(text="on-policy GRPO learns", methods=("grpo",), delay="const:0", figure="last", bound=0.86, at_least=True),
    Demand(
        text="on-policy GEPO-T learns", methods=("gepo_t",), delay="const:0", figure="last", bound=0.86, at_least=True
    ),
    Demand(text="delay hurts GRPO", methods=("grpo",), delay="const:64", figure="loss", bound=0.12, at_least=True),
    Demand(
        text="GEPO-T, constant 64", methods=("gepo_t",), delay="const:64", figure="loss", bound=0.04, at_least=False
    ),
    Demand(
        text="GEPO-T, constant 128", methods=("gepo_t",), delay="const:128", figure="loss", bound=0.04, at_least=False
    ),
    Demand(
        text="GEPO-T, long-tailed", methods=("gepo_t",), delay="weibull:256", figure="loss", bound=0.03, at_least=False
    ),
    Demand(
        text="GEPO-T or gex, log-normal",
        methods=("gepo_t", "gex"),
        delay="lognorm:64",
        figure="loss",
        bound=0.05,
        at_least=False,
    ),
    Demand(
        text="gex with brake, learning rate 1e-3",
        methods=("gex+brake",),
        delay="const:64",
        figure="loss",
        bound=0.05,
        at_least=False,
        plan=_AGGRESSIVE,
    ),
    Demand(
        text="delay hurts GRPO, learning rate 1e-3",
        methods=("grpo",),
        delay="const:64",
        figure="loss",
        bound=0.20,
        at_least=True,
        plan=_AGGRESSIVE,
    ),
    Demand(
        text="GEPO-T or gex with brake, 400 updates",
        methods=("gepo_t", "gex+brake"),
        delay="const:64",
        figure="loss",
        bound=0.08,
        at_least=False,
        plan=_LONG,
    ),
    Demand(
        text="delay hurts GRPO, 400 updates",
        methods=("grpo",),
        delay="const:64",
        figure="loss",
        bound=0.12,
        at_least=True,
        plan=_LONG,
    ),
    Demand(
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
    """A demand and what was measured."""

    demand: Demand
    measured: float | None
    """The figure of the method that does best; None where too few seeds were run."""
    met: bool | None
    """None: not measured, or a method that might yet meet it was not."""


def runs_needed() -> list[tuple[str, str, TrainingPlan]]:
    """(method, delay, plan) of every run the demands read, each once, baselines first."""
    wanted: dict[tuple[str, str, TrainingPlan], None] = {}
    for demand in DEMANDS:
        if demand.figure == "loss":
            wanted[(*BASELINE, demand.plan)] = None
        for method in demand.methods:
            wanted[(method, demand.delay, demand.plan)] = None
    return list(wanted)


def judge(results: ResultFile, seeds: range) -> list[Verdict]:
    """One verdict a demand, from the results of `seeds`; fewer than LEAST_SEEDS of them measure nothing."""
    return [_verdict(demand, results, seeds) for demand in DEMANDS]


def _verdict(demand: Demand, results: ResultFile, seeds: range) -> Verdict:
    figures = [figure for method in demand.methods if (figure := _figure(demand, method, results, seeds)) is not None]
    if not figures:
        return Verdict(demand=demand, measured=None, met=None)
    measured = max(figures) if demand.at_least else min(figures)
    met = measured >= demand.bound if demand.at_least else measured <= demand.bound
    undecided = not met and len(figures) < len(demand.methods)
    return Verdict(demand=demand, measured=measured, met=None if undecided else met)


def _figure(demand: Demand, method: str, results: ResultFile, seeds: range) -> float | None:
    found = results.of(Setting.of(DEMANDED_TASK, method, demand.delay, demand.plan), seeds)
    if len(found) < LEAST_SEEDS:
        return None
    last = fmean(result.last for result in found)
    if demand.figure == "last":
        return last
    baseline = on_policy_last(results, DEMANDED_TASK, demand.plan, [result.seed for result in found])
    return 1 - last / baseline if baseline else None
