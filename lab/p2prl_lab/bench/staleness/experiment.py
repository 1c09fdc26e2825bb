"""The published experiment: tasks, methods, laws and seeds, cut into batches that a rerun continues after.

Reduced so that two cores finish it, and honest about how: every method is tuned on development seeds under one law per
task, over its learning rate, as far down as that helps, and then, if it is a rival, over its clip or cap at the best
rate; the setting chosen there is used under every law, on policy and offline. Reporting seeds are used for nothing
else. Runs on policy of several lengths are one run, evaluated on the way; so are those on rollouts of the starting
policy alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from p2prl_lab.bench.staleness.bases import ON_POLICY
from p2prl_lab.bench.staleness.delay_laws import OFFLINE
from p2prl_lab.bench.staleness.method_sets import NAMED
from p2prl_lab.bench.staleness.methods import parse_method
from p2prl_lab.bench.staleness.results import ResultFile, Setting
from p2prl_lab.bench.staleness.seed_log import SeedResult
from p2prl_lab.bench.staleness.sweep import DEVELOPMENT_SEEDS, LEAST_RATE, RATES, Tried, best_of, grid, wants_lower
from p2prl_lab.bench.training.environments import environment_by_name
from p2prl_lab.bench.training.training_plan import TrainingPlan

LEARNER = "+amsgrad"
"""The addition of every run's learner."""

DEFAULT = "topr:sharpness=1" + LEARNER
"""TOPR divided by NLL, what a run did when this experiment was declared; it keeps the name in its tables."""

GRPO = "grpo" + LEARNER

PLAIN = (DEFAULT.removesuffix(LEARNER), "grpo")
"""The default and GRPO without it."""

WITH_EXPECTATION = "gepo_t:sharpness=1" + LEARNER
VARIANTS = (WITH_EXPECTATION, "gepo_t" + LEARNER, "gepo" + LEARNER)
"""The default with GEPO's group expectation, that without the division by NLL, and GEPO itself."""

ASYMPO, TOPR = "asympo" + LEARNER, "topr" + LEARNER
RELAXED_GRPO = "grpo:clip_low=0.8:clip_high=4" + LEARNER
"""GRPO with the clip that long delays want and the tuning law may not choose."""

SOFT_OAPL = "oapl:beta=0.1" + LEARNER
"""OAPL with a hundred times its own β: rewards of 0 and 1 then ask for ten nats, not for a thousand."""

RIVALS = (ASYMPO, TOPR, "tis" + LEARNER, "gspo" + LEARNER, "oapl" + LEARNER, SOFT_OAPL)
"""The published losses that lost least in earlier runs, and the one that claims the longest lags."""

METHODS = (DEFAULT, GRPO, RELAXED_GRPO, *RIVALS, *VARIANTS, *PLAIN)
LONG_METHODS = (
    DEFAULT,
    GRPO,
    ASYMPO,
    f"{NAMED['without_expectation']}:taper=geometric{LEARNER}",
    f"{NAMED['without_expectation']}:taper=token{LEARNER}",
)
FEW = (DEFAULT, GRPO, RELAXED_GRPO, ASYMPO, TOPR, WITH_EXPECTATION)
"""What is compared first, drawn, and run in the larger model."""

BROAD = (DEFAULT, GRPO, RELAXED_GRPO, TOPR, "tis" + LEARNER)
"""What is run first under the laws without aims: the default, and what came closest under the others."""

OWN = (DEFAULT, *VARIANTS, PLAIN[0])
"""Losses of this project. Only their learning rates are tuned, so that no rival is tuned less than they are."""

_PEERS = "peers:const:0/const:16/const:64/const:128"

LAWS = (
    ("const:128", 640),
    ("const:256", 1280),
    ("lognorm:256", 1280),
    ("const:512", 2560),
    ("burst:96", 640),
    (_PEERS, 640),
    (f"within:{_PEERS}", 640),
    ("weibull:60:1800s@15", 640),
    ("const:64", 320),
    ("const:32", 320),
    ("const:8", 320),
)
"""(law, updates), in the order in which they are run: at least five times the longest delay."""

LONG = tuple(law for law in LAWS if law[0] in ("const:128", "const:256", "const:512"))
"""The laws with aims of their own."""

_BESIDE = tuple(law for law, _ in LAWS if law not in dict(LONG))

TUNING_LAW = ("const:64", 320)
"""Settings are chosen under this law alone: under a longer one the sweep would cost more than the report."""

LEARNING_RATE = 5e-4

EVALUATIONS = 16
"""Evaluations of a run. Settings are chosen by the last three, of more prompts than the others."""

REPORTED = 5
"""Evaluations that are reported: they span 1.25 of the longest delay, which what a policy forgets comes in waves of."""

REPORTING = (range(5, 10), range(5))
"""Reporting seeds, in the order in which they are used. Seeds 0 to 4 were reported on before the sweep reached below a
quarter of the plan's rate, so the others come first."""

_DIGITS = 5
"""Significant digits kept of every figure; more would double the committed file and mean nothing."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One task with the methods and laws that it is run under."""

    task: str
    methods: tuple[str, ...] = METHODS
    laws: tuple[tuple[str, int], ...] = LAWS
    halves: int = len(REPORTING)
    """How many of the groups of reporting seeds are used."""
    seconds: float
    """Rough CPU seconds of an update of one seed on a busy core; a run corrects them by what it measures."""


PARTS = (
    Part(task="split4", seconds=0.014),
    Part(task="strict8", seconds=0.017),
    Part(task="chain4", seconds=0.012),
    Part(task="walk12", methods=(DEFAULT, GRPO), laws=LONG, halves=1, seconds=0.09),
    Part(task="strict8@96x3", methods=FEW, laws=(TUNING_LAW,), halves=1, seconds=0.08),
    Part(task="march512", methods=LONG_METHODS, laws=(TUNING_LAW,), halves=1, seconds=0.35),
)
"""Three short tasks, the one that separates methods first, one of fifty tokens, a larger model, and one of long
completions."""

RUNGS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    ((DEFAULT,), ("const:128", "const:256", "const:512")),
    ((DEFAULT, GRPO), ("const:128", "const:256", "const:512")),
    (FEW, ("const:128", "const:256", "const:512")),
    ((DEFAULT, GRPO, *RIVALS), ("const:128", "const:256", "const:512")),
    ((DEFAULT, GRPO, *PLAIN), ("const:128", "const:256", "const:512")),
    (FEW, ("lognorm:256",)),
    (BROAD, _BESIDE),
    ((DEFAULT, GRPO, *RIVALS), _BESIDE),
)
"""(methods, laws) that are run first, on every task, for half of the seeds: what says most of the default against its
own run on policy comes first, then what is beside it. Rivals are run on policy later: they are held against the default
under the same law."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One batch of seeds of one setting."""

    part: Part
    method: str
    law: str
    updates: int
    seeds: tuple[int, ...]
    also: tuple[int, ...] = ()
    """Shorter lengths, in updates, that the same run gives results of."""

    @property
    def plan(self) -> TrainingPlan:
        """See `plan_of`."""
        return plan_of(self.part.task, self.updates)

    @property
    def shorter(self) -> list[TrainingPlan]:
        """Plans of the shorter lengths."""
        return [plan_of(self.part.task, updates) for updates in self.also]

    @property
    def seconds(self) -> float:
        """Expected CPU seconds."""
        return self.part.seconds * self.updates * len(self.seeds)


@cache
def plan_of(task: str, updates: int) -> TrainingPlan:
    """The plan of every run of this many updates: sixteen evaluations, of half the usual number of prompts."""
    usual, final = environment_by_name(task).evaluated_prompts
    return TrainingPlan(
        updates=updates,
        learning_rate=LEARNING_RATE,
        evaluate_every=updates // EVALUATIONS,
        evaluation_prompts=usual // 2,
        final_prompts=final // 2,
    )


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """How far the tuning of a method is."""

    tried: tuple[str, ...]
    """The settings that have been tried, or are next, in order."""
    to_come: int = 0
    """Settings that follow for certain once those have results."""
    choice: str | None = None
    """The best of all; None until every setting has been tried on every development seed."""


@cache
def _clips_of(task: str, method: str) -> tuple[str, ...]:
    """The method with its own clip or cap first; a rival's others after it."""
    limit = environment_by_name(task).max_new_tokens
    every = grid(method, plan_of(task, TUNING_LAW[1]), max_completion_tokens=limit)
    own, *others = (setting.rpartition("+lr=")[0] for setting in every[:: len(RATES)])
    return own, *(() if method in OWN else others)


def tuning_of(results: ResultFile, task: str, method: str) -> Tuning:
    """What has been tried of a method on the development seeds, what is next, and the choice.

    First its own clip at the learning rates of `sweep.RATES`, and at half the lowest as long as the lowest is the best
    or every one collapses;
    then, of a rival, the other clips at the best rate.
    """
    own, *others = _clips_of(task, method)
    rates = [factor * LEARNING_RATE for factor in RATES]
    while True:
        settings = [_at(own, rate) for rate in rates]
        tried = _all_tried(results, task, settings)
        if tried is None:
            return Tuning(tried=tuple(settings), to_come=len(others))
        best, lowest = best_of(tried), min(rates)
        if not wants_lower(tried, [_at(own, lowest)]) or lowest / 2 < LEAST_RATE * LEARNING_RATE:
            break
        rates.append(lowest / 2)
    settings += [_at(clip, rates[settings.index(best)]) for clip in others]
    tried = _all_tried(results, task, settings)
    return Tuning(tried=tuple(settings), choice=None if tried is None else best_of(tried))


def _at(method: str, rate: float) -> str:
    return f"{method}+lr={rate:g}"


def _all_tried(results: ResultFile, task: str, settings: Sequence[str]) -> list[Tried] | None:
    """Figures of every setting; None while a development seed of one is missing."""
    law, updates = TUNING_LAW
    plan = plan_of(task, updates)
    found = [results.of(Setting.of(task, setting, law, plan), DEVELOPMENT_SEEDS) for setting in settings]
    if any(len(each) < len(DEVELOPMENT_SEEDS) for each in found):
        return None
    return [tried_of(setting, each) for setting, each in zip(settings, found, strict=True)]


def choice_of(results: ResultFile, task: str, method: str) -> str | None:
    """The best setting on the development seeds; None until its tuning is done."""
    return tuning_of(results, task, method).choice


def tried_of(setting: str, found: Sequence[SeedResult]) -> Tried:
    """One setting's figures on the development seeds."""
    return Tried(
        method=setting,
        greedy=fmean(result.last_of("greedy") for result in found),
        sampled=fmean(result.last for result in found),
        collapsed=any(result.collapsed_at is not None for result in found),
    )


def tuning_jobs(results: ResultFile, parts: Sequence[Part] = PARTS) -> Iterator[Job]:
    """Missing runs on the development seeds, as far as they are known: the plan's own rate first, so that early results
    compare all methods."""
    law, updates = TUNING_LAW
    for part in parts:
        lists = [tuning_of(results, part.task, method).tried for method in part.methods]
        for index in range(max(map(len, lists))):
            for settings in lists:
                if index < len(settings):
                    yield from _missing(results, part, settings[index], law, updates, DEVELOPMENT_SEEDS)


def reporting_jobs(
    results: ResultFile, parts: Sequence[Part] = PARTS, *, on_policy: Sequence[str] | None = None
) -> Iterator[Job]:
    """Missing runs on the reporting seeds, for methods whose setting is chosen; on policy, then under a law.

    `on_policy`: the methods that are run on policy; None: all. Half of the seeds under every law come before the other
    half. The first run on policy is as long as any law of the part asks, and gives the results of the shorter ones. So
    does the default's on rollouts of the starting policy alone.
    """
    for half, seeds in enumerate(REPORTING):
        for law in LAWS:
            for part in parts:
                used = half < part.halves and law in part.laws
                for method in part.methods if used else ():
                    chosen = choice_of(results, part.task, method)
                    if chosen is not None:
                        if on_policy is None or method in on_policy:
                            yield from _every_length(results, part, chosen, ON_POLICY, seeds)
                        if method == DEFAULT:
                            yield from _every_length(results, part, chosen, OFFLINE, seeds)
                        yield from _missing(results, part, chosen, *law, seeds)


def _every_length(results: ResultFile, part: Part, method: str, law: str, seeds: Sequence[int]) -> Iterator[Job]:
    """One run of every missing seed, as long as the longest length that it lacks."""
    lengths = sorted({updates for _, updates in part.laws})
    lacking: dict[tuple[int, ...], list[int]] = {}
    for seed in seeds:
        settings = {length: Setting.of(part.task, method, law, plan_of(part.task, length)) for length in lengths}
        if own := tuple(length for length in lengths if results.missing(settings[length], [seed])):
            lacking.setdefault(own, []).append(seed)
    for (*also, updates), missing in lacking.items():
        yield Job(part=part, method=method, law=law, updates=updates, seeds=tuple(missing), also=tuple(also))


def missing_jobs(results: ResultFile, parts: Sequence[Part] = PARTS) -> Iterator[Job]:
    """Missing batches in the order in which they are run, as far as they are known; some come more than once.

    What says most comes first (`RUNGS`). Then, task by task: tuned, and reported on half of the seeds.
    """
    for rung in RUNGS:
        some = [narrowed for part in parts if (narrowed := _narrowed(part, *rung)).methods and narrowed.laws]
        yield from tuning_jobs(results, some)
        yield from reporting_jobs(results, some, on_policy=(DEFAULT, GRPO))
    for part in (replace(part, halves=1) for part in parts):
        yield from tuning_jobs(results, [part])
        yield from reporting_jobs(results, [part])
    yield from reporting_jobs(results, parts)


def next_job(results: ResultFile, parts: Sequence[Part] = PARTS) -> Job | None:
    """The next batch to run; None when the experiment is complete."""
    return next(missing_jobs(results, parts), None)


def _narrowed(part: Part, methods: Sequence[str], laws: Sequence[str]) -> Part:
    return replace(
        part,
        methods=tuple(method for method in part.methods if method in methods),
        laws=tuple(law for law in part.laws if law[0] in laws),
        halves=1,
    )


def remaining_seconds(results: ResultFile, parts: Sequence[Part] = PARTS) -> float:
    """Expected CPU seconds of all missing runs, as far as they are certain: lower rates may follow.

    A method without a choice needs all of its reporting runs.
    """
    # The run on policy is named by every law, and is one run.
    jobs = dict.fromkeys((*tuning_jobs(results, parts), *reporting_jobs(results, parts)))
    total = sum(job.seconds for job in jobs)
    for part in parts:
        tunings = {name: tuning_of(results, part.task, name) for name in part.methods}
        waiting = {name: tuning for name, tuning in tunings.items() if tuning.choice is None}
        lengths = [updates for _, updates in part.laws]
        updates = len(waiting) * (sum(lengths) + max(lengths)) + (max(lengths) if DEFAULT in waiting else 0)
        total += updates * part.seconds * part_seeds(part)
        to_come = sum(tuning.to_come for tuning in waiting.values())
        total += to_come * part.seconds * TUNING_LAW[1] * len(DEVELOPMENT_SEEDS)
    return total


def part_seeds(part: Part) -> int:
    """Reporting seeds of a part."""
    return sum(map(len, REPORTING[: part.halves]))


def _missing(
    results: ResultFile, part: Part, method: str, law: str, updates: int, seeds: Iterable[int]
) -> Iterator[Job]:
    parse_method(method, max_completion_tokens=environment_by_name(part.task).max_new_tokens)
    left = results.missing(Setting.of(part.task, method, law, plan_of(part.task, updates)), seeds)
    if left:
        yield Job(part=part, method=method, law=law, updates=updates, seeds=tuple(left))


class CompactResults(ResultFile):
    """A file of results with figures of five digits, small enough to commit."""

    def __init__(self, path: Path) -> None:
        """Read `path`; see `SeedFile`."""
        super().__init__(path)

    def add(self, setting: Setting, results: Iterable[SeedResult]) -> None:
        """Append rounded results of one batch."""
        super().add(setting, [rounded(result) for result in results])


def rounded(result: SeedResult) -> SeedResult:
    """The result with five significant digits of every figure."""

    def short(values: dict[str, Any]) -> dict[str, Any]:
        return {name: float(f"{value:.{_DIGITS}g}") for name, value in values.items() if isinstance(value, float)}

    evaluations = tuple(replace(each, **short(vars(each))) for each in result.evaluations)
    return replace(result, evaluations=evaluations, **short(vars(result)))
