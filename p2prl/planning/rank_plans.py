"""Every way in which a host's processes could share an update, and the fastest by a fitted cost.

An update takes, by a plan of ranks with `pp` stages, for L layers, B micro-batches of each pipeline and T tokens,

    a + b L + (c + d L) (B + pp - 1) + (e + f L + g L r) (T + (pp - 1) T / B)

where r is 1 with activation checkpointing: a pipeline of stages fills and drains once an update. The coefficients of
each plan are fitted to short trainings of the model's first layers. The whole space is scored, so nothing is searched:
ReaL (arXiv 2406.14088) draws its plans where there are too many. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from p2prl.learner.training.parallel_config import ONE_PROCESS, ParallelConfig, Zero

MOST_RANKS = 8
"""Processes beyond which a plan is named, and not searched."""

_COEFFICIENTS = 7


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """An update, in rows of one length."""

    layers: int
    rows: int
    row_tokens: int
    """Prompt and completion."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostPlan:
    """How a host could compute an update."""

    parallel: ParallelConfig
    tokens: int
    """Most tokens of a micro-batch."""
    checkpointing: bool

    @property
    def text(self) -> str:
        """The plan of ranks, with what is not its usual way."""
        return self.parallel.name + (", zero 3" if self.parallel.zero == 3 else "")

    @property
    def description(self) -> str:
        """The whole plan in words."""
        return f"{self.text}, {self.tokens:,} tokens{', checkpointing' if self.checkpointing else ''}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """A training to time: a plan on work of its own, with the first layers of the model or all of them."""

    plan: HostPlan
    work: Work


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """A short training that was timed."""

    plan: HostPlan
    work: Work
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RankedPlan:
    """A plan with its predicted time."""

    plan: HostPlan
    seconds: float
    """For an update."""


Coefficients = tuple[float, ...]
"""Of `_terms`, in seconds; none is negative."""


def rank_plans(most_ranks: int) -> list[ParallelConfig]:
    """All plans of 1, 2, 4 ... and `most_ranks` ranks, `MOST_RANKS` at most: products of data, stages and tensor, with
    both kinds of ZeRO where rows are dealt."""
    most = max(1, min(most_ranks, MOST_RANKS))
    counts = sorted({most, *(count for count in (1, 2, 4, 8) if count <= most)})
    return [plan for ranks in counts for plan in _products(ranks)]


def _products(ranks: int) -> Iterable[ParallelConfig]:
    for data in range(ranks, 0, -1):
        for stages in range(ranks // data, 0, -1):
            if ranks % (data * stages):
                continue
            sizes = {"dp": data, "pp": stages, "tp": ranks // (data * stages)}
            name = "".join(f"{kind}{size}" for kind, size in sizes.items() if size > 1) or ONE_PROCESS
            kinds: tuple[Zero, ...] = (2, 3) if data > 1 else (2,)
            yield from (ParallelConfig(plan=name, zero=zero) for zero in kinds)


def plans_within(
    plans: Iterable[ParallelConfig], most_tokens: Callable[[ParallelConfig, bool], int], *, row_tokens: int
) -> list[HostPlan]:
    """Plans with every micro-batch that fits: the largest, its half and so on, down to one row.

    `most_tokens` is the largest by plan and checkpointing, 0 if not even a row fits.
    """
    found = []
    for parallel in plans:
        for checkpointing in (False, True):
            tokens = most_tokens(parallel, checkpointing)
            while tokens >= row_tokens:
                found.append(HostPlan(parallel=parallel, tokens=tokens, checkpointing=checkpointing))
                tokens //= 2
    return found


def profile_timings(parallel: ParallelConfig, *, layers: int, row_tokens: int) -> list[Timing]:
    """What is timed of a plan: two depths, by two sizes of micro-batches and numbers of them, once checkpointed."""
    stages, data = parallel.pipeline, parallel.data
    if stages > layers:
        return []
    found = []
    for depth in sorted({min(stages * each, layers - layers % stages) for each in (1, 2)}):
        for rows, together in ((2, 2), (4, 4), (4, 2)):
            work = Work(layers=depth, rows=rows * data, row_tokens=row_tokens)
            plan = HostPlan(parallel=parallel, tokens=together * row_tokens, checkpointing=False)
            found.append(Timing(plan=plan, work=work))
    last = found[-1]
    again = HostPlan(parallel=parallel, tokens=last.plan.tokens, checkpointing=True)
    return [*found, Timing(plan=again, work=last.work)]


def fit(probes: Sequence[Probe]) -> Coefficients:
    """Coefficients of one plan of ranks, by least squares of the relative error, none below 0."""
    terms = np.array([_terms(probe.plan, probe.work) for probe in probes])
    seconds = np.array([probe.seconds for probe in probes])
    scale = terms.max(axis=0)
    scale[scale == 0.0] = 1.0
    terms = terms / scale / seconds[:, None]
    used = list(range(_COEFFICIENTS))
    while True:
        solved = np.linalg.lstsq(terms[:, used], np.ones(len(probes)), rcond=None)[0]
        if solved.min() >= 0.0 or len(used) == 1:
            break
        used.pop(int(solved.argmin()))
    found = np.zeros(_COEFFICIENTS)
    found[used] = np.maximum(solved, 0.0)
    return tuple(float(value) for value in found / scale)


def predicted_s(plan: HostPlan, work: Work, coefficients: Coefficients) -> float:
    """Seconds of an update."""
    return float(np.dot(_terms(plan, work), coefficients))


def fitted(probes: Iterable[Probe], plans: Iterable[HostPlan], work: Work) -> list[RankedPlan]:
    """The plans of which something was timed, fastest first."""
    groups: dict[tuple[str, int], list[Probe]] = {}
    for probe in probes:
        groups.setdefault((probe.plan.parallel.name, probe.plan.parallel.zero), []).append(probe)
    return ranked(plans, work, {key: fit(group) for key, group in groups.items()})


def ranked(plans: Iterable[HostPlan], work: Work, costs: Mapping[tuple[str, int], Coefficients]) -> list[RankedPlan]:
    """The plans whose cost is known by name and ZeRO, fastest first; among equals the fewest ranks, and no
    checkpointing."""
    found = [
        RankedPlan(plan=plan, seconds=predicted_s(plan, work, costs[key]))
        for plan in plans
        if (key := (plan.parallel.name, plan.parallel.zero)) in costs
    ]
    return sorted(
        found,
        key=lambda each: (
            each.seconds,
            each.plan.parallel.ranks,
            each.plan.checkpointing,
            each.plan.text,
            -each.plan.tokens,
        ),
    )


def best_of_each(plans: Sequence[RankedPlan]) -> list[RankedPlan]:
    """The fastest micro-batches of each plan of ranks, in the order given."""
    found: dict[tuple[str, int], RankedPlan] = {}
    for each in plans:
        found.setdefault((each.plan.parallel.name, each.plan.parallel.zero), each)
    return list(found.values())


def _terms(plan: HostPlan, work: Work) -> tuple[float, ...]:
    """What the coefficients are multiplied by."""
    rows = -(-work.rows // plan.parallel.data)
    together = min(rows, max(1, plan.tokens // work.row_tokens))
    batches = -(-rows // together)
    filling = plan.parallel.pipeline - 1
    passes = batches + filling
    tokens = rows * work.row_tokens * (1.0 + filling / batches)
    layers = work.layers
    again = layers * tokens if plan.checkpointing else 0.0
    return (1.0, layers, passes, layers * passes, tokens, layers * tokens, again)
