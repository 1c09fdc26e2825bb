"""Tables and curves of the published experiment: what is finished, against every base, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev

from p2prl_lab.bench.staleness.bases import ON_POLICY, Base, base_of, best_on_policy
from p2prl_lab.bench.staleness.charts import plot_curves
from p2prl_lab.bench.staleness.delay_laws import OFFLINE
from p2prl_lab.bench.staleness.experiment import (
    DEFAULT,
    FEW,
    GRPO,
    LAWS,
    LEARNING_RATE,
    LONG,
    PARTS,
    REPORTED,
    REPORTING,
    TUNING_LAW,
    Part,
    choice_of,
    part_seeds,
    plan_of,
    tuning_of,
)
from p2prl_lab.bench.staleness.results import ResultFile, Setting
from p2prl_lab.bench.staleness.seed_log import SeedResult
from p2prl_lab.bench.staleness.sweep import DEVELOPMENT_SEEDS, RATES
from p2prl_lab.bench.training.training_plan import FINAL_EVALUATIONS

_REPORTED = (
    "| task | law | method, as tuned | seeds | greedy | own base | GRPO's | best base | pass@8 | entropy | collapsed |",
    "|---|---|---|---|---|---|---|---|---|---|---|",
)
_TUNED = (
    "| task | setting | seeds | greedy | sampled | pass@8 | entropy | KL | collapsed |",
    "|---|---|---|---|---|---|---|---|---|",
)


_COMPARED = """Both under the same law, as tuned, in points of 100, paired by seed, ± standard errors: below zero the
other method is better. The means are over the tasks that have both. *Verdict*: by the mean of greedy reward, the other
method is better or worse by more than two standard errors, or level. Of level methods one in twenty would be called
better or worse by chance."""
_OVERVIEW = """Greedy reward in points of 100 ± standard errors, above zero the default is better; beyond two standard
errors in bold. How many tasks a mean is over is in parentheses; the table after this one has each of them."""
_OFFLINE = """Every rollout is the starting policy's: what a delay costs that never ends, and so the part of a loss
under a delay that has nothing to do with later rollouts. Greedy reward, and its loss against the same run on policy."""
_RATES = """Greedy reward below the best learning rate of the same method, clip as its authors set it, in points of 100,
mean over tasks ± standard errors, development seeds: what a rate costs that nobody has tuned."""
_MEASURES = ("greedy", "pass_at_8", "sampled")
_SEEDS = sorted(seed for half in REPORTING for seed in half)
Pairs = list[tuple[SeedResult, SeedResult]]


def report(results: ResultFile, parts: Sequence[Part] = PARTS) -> str:
    """Markdown: the reporting seeds, the development seeds, and what is missing."""
    reported, tuned = list(reporting_rows(results, parts)), list(tuning_rows(results, parts))
    lines = ["## Reporting seeds", ""]
    if reported:
        lines += ["Losses are of greedy reward, against runs on policy: its own, GRPO's and the best of any.", ""]
        lines += [*_REPORTED, *reported]
    else:
        lines.append("None yet: no method has been tuned to the end.")
    if overview := overview_lines(results, parts):
        lines += ["", "## The default minus each other method, mean over tasks", "", _OVERVIEW, "", *overview]
    if compared := compared_lines(results, parts):
        lines += ["", "## The default minus each other method", "", _COMPARED, "", *compared]
    if offline := offline_lines(results, parts):
        lines += ["", "## The default on rollouts of the starting policy alone", "", _OFFLINE, "", *offline]
    if rates := rate_lines(results, parts):
        lines += ["", "## What a learning rate costs", "", _RATES, "", *rates]
    lines += ["", f"## Development seeds, under {TUNING_LAW[0]}, {TUNING_LAW[1]} updates", ""]
    lines += [*_TUNED, *tuned] if tuned else ["None yet."]
    return "\n".join([*lines, "", "## Missing", "", *missing_lines(results, parts)]) + "\n"


def draw(results: ResultFile, path: Path, parts: Sequence[Part] = PARTS) -> bool:
    """Draw curves of greedy reward (PNG) to `path`; False when there is nothing to draw.

    Of the first task with results on reporting seeds, one panel for every law with an aim that has some, with the
    methods of `FEW`; while there are none, of the first with results on development seeds, every method's own clip at
    the plan's learning rate.
    """
    for part in parts:
        shown = [method for method in part.methods if method in FEW]
        chosen = [choice for method in shown if (choice := choice_of(results, part.task, method))]
        every = {law: plan_of(part.task, updates) for law, updates in part.laws if (law, updates) in LONG}
        plans = {
            law: plan
            for law, plan in every.items()
            if any(results.of(Setting.of(part.task, each, law, plan), _SEEDS) for each in chosen)
        }
        if plans:
            plot_curves(results, part.task, chosen, plans, _SEEDS, path)
            return True
    law, updates = TUNING_LAW
    for part in parts:
        plan, firsts = (
            plan_of(part.task, updates),
            [tuning_of(results, part.task, method).tried[0] for method in part.methods],
        )
        if any(results.of(Setting.of(part.task, first, law, plan), DEVELOPMENT_SEEDS) for first in firsts):
            plot_curves(results, part.task, firsts, {law: plan}, DEVELOPMENT_SEEDS, path)
            return True
    return False


def offline_lines(results: ResultFile, parts: Sequence[Part]) -> list[str]:
    """A table with one row for each task and length at which the default has been run offline."""
    rows = []
    for part in parts:
        chosen = choice_of(results, part.task, DEFAULT)
        for updates in sorted({updates for _, updates in part.laws}) if chosen else ():
            plan = plan_of(part.task, updates)
            offline, base = (Setting.of(part.task, chosen or "", law, plan) for law in (OFFLINE, ON_POLICY))
            if found := results.of(offline, _SEEDS):
                rows.append(
                    f"| `{part.task}` | {updates:,} | {len(found)} | {spread_text(found, 'greedy')} "
                    f"| {_loss_against(results, base, found)} |"
                )
    return ["| task | updates | seeds | greedy | own base |", "|---|---|---|---|---|", *rows] if rows else []


def reporting_rows(results: ResultFile, parts: Sequence[Part]) -> Iterator[str]:
    """One row of the table for each task, law and method with results on reporting seeds."""
    for part in parts:
        grpo = choice_of(results, part.task, GRPO)
        for law, updates in part.laws:
            plan = plan_of(part.task, updates)
            for method in part.methods:
                chosen = choice_of(results, part.task, method)
                found = [] if chosen is None else results.of(Setting.of(part.task, chosen, law, plan), _SEEDS)
                if chosen is None or not found:
                    continue
                own = [result.seed for result in found]
                bases = [
                    Setting.of(part.task, chosen, ON_POLICY, plan),
                    None if grpo is None else Setting.of(part.task, grpo, ON_POLICY, plan),
                    best_on_policy(results, part.task, plan, own),
                ]
                losses = [_loss_against(results, base, found) for base in bases]
                yield (
                    f"| {part.task} | `{law}` | `{chosen}` | {len(found)} | {spread_text(found, 'greedy')} "
                    f"| {' | '.join(losses)} | {spread_text(found, 'pass_at_8')} | {spread_text(found, 'entropy')} "
                    f"| {_collapsed(found)} |"
                )


def compared_lines(results: ResultFile, parts: Sequence[Part]) -> list[str]:
    """A table with one row for each law and method with runs of the default beside it: greedy by task, means over
    tasks."""
    rows = compared(results, parts)
    tasks = list(dict.fromkeys(task for pairs in rows.values() for task in pairs))
    shown = [f"`{task}`" for task in tasks]
    names = ["law", "method", *shown, "tasks", "mean", "verdict", "pass@8, mean", "sampled, mean"]
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for (name, method), by_task in rows.items():
        greedy = [points_text(gain_of(by_task[task], "greedy")) if task in by_task else "–" for task in tasks]
        mean, *others = (mean_gain([gain_of(pairs, each) for pairs in by_task.values()]) for each in _MEASURES)
        means = [points_text(mean), verdict_of(mean), *map(points_text, others)]
        lines.append(f"| `{name}` | `{method}` | {' | '.join((*greedy, str(len(by_task)), *means))} |")
    return lines if rows else []


def overview_lines(results: ResultFile, parts: Sequence[Part]) -> list[str]:
    """A table with one row for each law and one column for each method: greedy, mean over tasks."""
    cells: dict[str, dict[str, str]] = {}
    for (law, method), by_task in compared(results, parts).items():
        gain = mean_gain([gain_of(pairs, "greedy") for pairs in by_task.values()])
        text = points_text(gain) if verdict_of(gain) == "level" else f"**{points_text(gain)}**"
        cells.setdefault(law, {})[method] = f"{text} ({len(by_task)})"
    methods = list(dict.fromkeys(method for row in cells.values() for method in row))
    lines = [f"| law | {' | '.join(f'`{method}`' for method in methods)} |", "|---" * (len(methods) + 1) + "|"]
    lines += [f"| `{law}` | {' | '.join(row.get(method, '–') for method in methods)} |" for law, row in cells.items()]
    return lines if cells else []


def compared(results: ResultFile, parts: Sequence[Part]) -> dict[tuple[str, str], dict[str, Pairs]]:
    """(law, method), in the order of the experiment → task → the default's results and the method's.

    Where two seeds or more have both.
    """
    rows: dict[tuple[str, str], dict[str, Pairs]] = {}
    methods = list(dict.fromkeys(method for part in parts for method in part.methods if method != DEFAULT))
    for law in LAWS:
        for method in methods:
            every = {part.task: pairs_of(results, part, method, law) for part in parts}
            if found := {task: pairs for task, pairs in every.items() if len(pairs) > 1}:
                rows[law[0], method] = found
    return rows


def pairs_of(results: ResultFile, part: Part, method: str, law: tuple[str, int]) -> Pairs:
    """(the default's result, the method's) on each reporting seed that both have, as tuned."""
    choices = [choice_of(results, part.task, each) for each in (DEFAULT, method)]
    if law not in part.laws or method not in part.methods or None in choices:
        return []
    plan = plan_of(part.task, law[1])
    found = [results.of(Setting.of(part.task, choice or "", law[0], plan), _SEEDS) for choice in choices]
    first, second = ({result.seed: result for result in each} for each in found)
    return [(first[seed], second[seed]) for seed in first.keys() & second.keys()]


def gain_of(pairs: Pairs, measure: str, evaluations: int = REPORTED) -> tuple[float, float]:
    """Mean of the paired differences and its standard error."""
    gains = [ours.last_of(measure, evaluations) - other.last_of(measure, evaluations) for ours, other in pairs]
    return fmean(gains), stdev(gains) / len(gains) ** 0.5


def mean_gain(gains: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The mean over tasks, which are independent, and its standard error."""
    return fmean(gain for gain, _ in gains), sum(error**2 for _, error in gains) ** 0.5 / len(gains)


def verdict_of(gain: tuple[float, float]) -> str:
    """What the default's mean gain over another method says of the other one, at two standard errors."""
    mean, error = gain
    if abs(mean) <= 2 * error:
        return "level"
    return "worse" if mean > 0 else "better"


def points_text(gain: tuple[float, float]) -> str:
    """A difference in points of 100."""
    return f"{100 * gain[0]:.1f} ± {100 * gain[1]:.1f}"


def rate_lines(results: ResultFile, parts: Sequence[Part]) -> list[str]:
    """A table with one row for each method, tuned on two tasks or more, and one column for each rate of the sweep."""
    rates = sorted(factor * LEARNING_RATE for factor in RATES)
    rows = []
    # Tasks with a few methods only are left out, or means over different tasks would stand side by side.
    methods = max((part.methods for part in parts), key=len)
    for method in methods:
        tables = [at_rates(results, part.task, method) for part in parts if part.methods == methods]
        tuned = [table for table in tables if table]
        if len(tuned) > 1:
            bests = [max(table.values(), key=_tuned_on) for table in tuned]
            costs = [
                mean_gain(
                    [
                        gain_of(list(zip(best, table[rate], strict=True)), "greedy", FINAL_EVALUATIONS)
                        for best, table in zip(bests, tuned, strict=True)
                    ]
                )
                for rate in rates
            ]
            rows.append(f"| `{method}` | {len(tuned)} | {' | '.join(map(points_text, costs))} |")
    lines = [f"| method | tasks | {' | '.join(f'{rate:g}' for rate in rates)} |", "|---" * (len(rates) + 2) + "|"]
    return [*lines, *rows] if rows else []


def at_rates(results: ResultFile, task: str, method: str) -> dict[float, list[SeedResult]]:
    """Learning rate → development results of the method with its own clip; empty until its tuning is done."""
    tuning = tuning_of(results, task, method)
    if tuning.choice is None:
        return {}
    law, updates = TUNING_LAW
    split = [setting.rpartition("+lr=") for setting in tuning.tried]
    own = [(float(rate), f"{body}+lr={rate}") for body, _, rate in split if body == split[0][0]]
    plan = plan_of(task, updates)
    return {rate: results.of(Setting.of(task, setting, law, plan), DEVELOPMENT_SEEDS) for rate, setting in own}


def _tuned_on(found: Sequence[SeedResult]) -> float:
    return fmean(result.last_of("greedy", FINAL_EVALUATIONS) for result in found)


def tuning_rows(results: ResultFile, parts: Sequence[Part]) -> Iterator[str]:
    """One row for each setting with results on development seeds."""
    law, updates = TUNING_LAW
    for part in parts:
        for method in part.methods:
            for setting in tuning_of(results, part.task, method).tried:
                found = results.of(Setting.of(part.task, setting, law, plan_of(part.task, updates)), DEVELOPMENT_SEEDS)
                if found:
                    names = ("greedy", "sampled", "pass_at_8", "entropy", "kl")
                    figures = [spread_text(found, name, FINAL_EVALUATIONS) for name in names]
                    yield (
                        f"| {part.task} | `{setting}` | {len(found)} | {' | '.join(figures)} | {_collapsed(found)} |"
                    )


def missing_lines(results: ResultFile, parts: Sequence[Part]) -> Iterator[str]:
    """For each task how much has been run, of how much."""
    law, updates = TUNING_LAW
    for part in parts:
        tunings = [tuning_of(results, part.task, method) for method in part.methods]
        settings = [setting for tuning in tunings for setting in tuning.tried]
        every = len(settings) + sum(tuning.to_come for tuning in tunings)
        plan = plan_of(part.task, updates)
        tuned = sum(len(results.of(Setting.of(part.task, s, law, plan), DEVELOPMENT_SEEDS)) for s in settings)
        chosen = [tuning.choice for tuning in tunings if tuning.choice]
        reported = sum(
            len(results.of(Setting.of(part.task, choice, law, plan_of(part.task, updates)), _SEEDS))
            for choice in chosen
            for law, updates in part.laws
        )
        yield (
            f"* `{part.task}`: {tuned} of {every * len(DEVELOPMENT_SEEDS)} development runs, {reported} of "
            f"{len(part.methods) * len(part.laws) * part_seeds(part)} reporting runs under delay."
        )


def spread_text(found: Sequence[SeedResult], measure: str, evaluations: int = REPORTED) -> str:
    """Mean and standard error over seeds, of the last evaluations."""
    values = [result.last_of(measure, evaluations) for result in found]
    if len(values) < 2:
        return f"{fmean(values):.3f}"
    return f"{fmean(values):.3f} ± {stdev(values) / len(values) ** 0.5:.3f}"


def _loss_against(results: ResultFile, base: Setting | None, found: Sequence[SeedResult]) -> str:
    """Loss of greedy reward against a run on the same seeds."""
    if base is None:
        return loss_text(None)
    seeds = [result.seed for result in found]
    return loss_text(base_of(base, results.of(base, seeds), found, evaluations=REPORTED))


def loss_text(base: Base | None) -> str:
    """Loss of greedy reward, in percent; a dash where the base is missing or earns nothing."""
    if base is None or base.greedy_loss is None:
        return "–"
    error = "" if base.greedy_loss_error is None else f" ± {100 * base.greedy_loss_error:.1f}"
    return f"{100 * base.greedy_loss:.1f} %{error}"


def _collapsed(found: Sequence[SeedResult]) -> str:
    seeds = [str(result.seed) for result in found if result.collapsed_at is not None]
    return ", ".join(seeds) or "none"
