"""Reported figures: one row per method and delay law, as JSON, CSV and a Markdown table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev

from p2prl_lab.bench.staleness.bases import BASELINE, ON_POLICY, Base, areas_of, base_of, best_on_policy
from p2prl_lab.bench.staleness.delay_laws import is_steady, parse_law
from p2prl_lab.bench.staleness.learning_speed import NEARLY, first_at, stale_share
from p2prl_lab.bench.staleness.measures import MEASURES
from p2prl_lab.bench.staleness.results import ResultFile, Setting
from p2prl_lab.bench.staleness.seed_log import SeedResult
from p2prl_lab.bench.training.training_plan import TrainingPlan


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method under one delay law; many fields because it is one row of a table.

    Figures without another note are means over seeds of the mean over each seed's last three evaluations. See
    `measures.Evaluation` for the measures.
    """

    method: str
    delay: str
    seeds: tuple[int, ...]
    steady_state: bool
    """Whether the run has at least five times as many updates as the law's longest delay."""
    best: float
    """Mean over seeds of each seed's best evaluation by sampled reward."""
    last: float
    """Sampled reward."""
    last_per_seed: tuple[float, ...]
    last_deviation: float
    """Standard deviation of `last` over seeds; 0 for one seed."""
    loss_vs_on_policy: float | None
    """Loss of sampled reward against on-policy GRPO, that of `grpo_base`; None when that was not run."""
    loss_error: float | None
    """Standard error of the loss, comparing each seed with on-policy GRPO on that seed; None for one seed."""
    grad_norm_max: float
    """Over seeds and updates, before the clip."""
    weight_max: float
    ess_min: float
    kl_mean: float
    """Mean over seeds and updates, nats per token."""
    greedy: float
    greedy_per_seed: tuple[float, ...]
    pass_at_8: float
    entropy: float
    nll: float
    calibration: float
    length: float
    grpo_base: Base | None
    """On-policy GRPO at the plan's learning rate."""
    own_base: Base | None
    """The same method on policy."""
    best_base: Base | None
    """The best on-policy run of any method in the results, at its own learning rate; the best by greedy reward."""
    area_from: int
    """Update from which on areas count: the one at which the law's delays have settled."""
    area: float | None
    """Area under greedy reward from then on, per update: the curve's mean height. None where the run ends before."""
    area_per_seed: tuple[float, ...]
    updates_to_98: float | None
    """Mean updates to the first evaluation with .98 of the same method's on-policy end by greedy reward, seed by seed;
    None without that run, or where a seed does not get there."""
    kl_sampler: float
    """Mean KL of sampler and learner over the counted evaluations' batches, nats per token."""
    stale_share: float
    """Share of the counted evaluations with at least .01 nats a token of it."""
    void: bool
    """Whether the law delays, and yet more than half of the counted evaluations are below .01 nats a token: the policy
    had stopped, and the row says nothing about staleness."""
    failures_below_05: float | None
    """Share of failures whose weight is below .05 of what it were on policy, mean over the counted evaluations."""
    group_size: int
    torch: str
    """Releases of torch that the seeds were run with."""
    machine: str
    """Cards, or types of processor."""
    collapsed: bool
    """Whether a seed collapsed; see `collapse`."""
    collapsed_seeds: tuple[int, ...]
    curves: dict[str, list[tuple[int, float]]]
    """Measure → (update, mean over seeds)."""


def rows_of(
    results: ResultFile, task: str, methods: Sequence[str], delays: Sequence[str], plan: TrainingPlan, seeds: range
) -> list[Row]:
    """One row per method and delay with at least one finished seed, in the order given."""
    rows = []
    for method in methods:
        for delay in delays:
            setting = Setting.of(task, method, delay, plan)
            found = results.of(setting, seeds)
            if found:
                rows.append(_row(results, setting, plan, found))
    return rows


def on_policy_last(results: ResultFile, task: str, plan: TrainingPlan, seeds: Sequence[int]) -> float | None:
    """`last` of the baseline over exactly these seeds, or None when one of them is missing."""
    found = results.of(Setting.of(task, *BASELINE, plan), seeds)
    return fmean(result.last for result in found) if len(found) == len(seeds) else None


def _row(results: ResultFile, setting: Setting, plan: TrainingPlan, found: Sequence[SeedResult]) -> Row:
    seeds = [result.seed for result in found]

    law = parse_law(setting.delay)
    own = Setting.of(setting.task, setting.method, ON_POLICY, plan)

    def base(run: Setting | None) -> Base | None:
        return None if run is None else base_of(run, results.of(run, seeds), found, area_from=law.settled)

    def mean(measure: str) -> float:
        return fmean(result.last_of(measure) for result in found)

    grpo_base = base(Setting.of(setting.task, *BASELINE, plan))
    lasts = tuple(result.last for result in found)
    areas = areas_of(found, law.settled)
    counted = [each for result in found for each in result.evaluations if each.update > law.settled]
    tapered = [each.failures_below_05 for each in counted if each.failures_below_05 is not None]
    stale = fmean(stale_share(result.evaluations, law.settled) for result in found)
    collapsed = tuple(result.seed for result in found if result.collapsed_at is not None)
    return Row(
        method=setting.method,
        delay=setting.delay,
        seeds=tuple(seeds),
        steady_state=is_steady(law, setting.updates),
        best=fmean(result.best for result in found),
        last=fmean(lasts),
        last_per_seed=lasts,
        last_deviation=stdev(lasts) if len(lasts) > 1 else 0.0,
        loss_vs_on_policy=grpo_base.loss if grpo_base else None,
        loss_error=grpo_base.loss_error if grpo_base else None,
        grad_norm_max=max(result.grad_norm_max for result in found),
        weight_max=max(result.weight_max for result in found),
        ess_min=min(result.ess_min for result in found),
        kl_mean=fmean(result.kl_mean for result in found),
        greedy=mean("greedy"),
        greedy_per_seed=tuple(result.last_of("greedy") for result in found),
        pass_at_8=mean("pass_at_8"),
        entropy=mean("entropy"),
        nll=mean("nll"),
        calibration=mean("calibration"),
        length=mean("length"),
        grpo_base=grpo_base,
        own_base=base(own),
        best_base=base(best_on_policy(results, setting.task, plan, seeds)),
        area_from=law.settled,
        area=fmean(areas) if areas else None,
        area_per_seed=tuple(areas),
        updates_to_98=_updates_to_98(found, results.of(own, seeds)),
        kl_sampler=fmean(each.kl for each in counted) if counted else 0.0,
        stale_share=stale,
        void=law.longest > 0 and stale < 0.5,
        failures_below_05=fmean(tapered) if tapered else None,
        group_size=setting.group_size,
        torch=_joined(result.torch for result in found),
        machine=_joined(result.machine for result in found),
        collapsed=bool(collapsed),
        collapsed_seeds=collapsed,
        curves={measure: _mean_curve(found, measure) for measure in MEASURES},
    )


def _updates_to_98(found: Sequence[SeedResult], own: Sequence[SeedResult]) -> float | None:
    if len(own) < len(found):
        return None
    levels = [NEARLY * result.last_of("greedy") for result in own]
    firsts = [first_at(result.curve("greedy"), level) for result, level in zip(found, levels, strict=True)]
    reached = [first for first in firsts if first is not None]
    return fmean(reached) if len(reached) == len(firsts) else None


def _joined(names: Iterable[str]) -> str:
    return ", ".join(sorted({name for name in names if name}))


def _mean_curve(found: Sequence[SeedResult], measure: str) -> list[tuple[int, float]]:
    columns = zip(*(result.curve(measure) for result in found), strict=True)
    return [(column[0][0], fmean(value for _, value in column)) for column in columns]


def as_documents(rows: Sequence[Row]) -> list[dict[str, object]]:
    """Rows as JSON objects."""
    return [asdict(row) for row in rows]


def as_csv(rows: Sequence[Row]) -> str:
    """Rows as CSV with a header: lists joined by spaces, the fields of a base under `base.field`; no curves."""
    text = io.StringIO()
    bases = ("grpo_base", "own_base", "best_base")
    plain = [name for name in Row.__dataclass_fields__ if name not in (*bases, "curves")]
    nested = [f"{base}.{name}" for base in bases for name in Base.__dataclass_fields__]
    writer = csv.DictWriter(text, plain + nested, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for row in rows:
        cells = asdict(row)
        for name in bases:
            cells |= {f"{name}.{key}": value for key, value in (cells[name] or {}).items()}
        for name in ("last_per_seed", "greedy_per_seed", "area_per_seed"):
            cells[name] = " ".join(f"{value:.4f}" for value in cells[name])
        for name in ("seeds", "collapsed_seeds"):
            cells[name] = " ".join(map(str, cells[name]))
        writer.writerow(cells)
    return text.getvalue()


def as_markdown(rows: Sequence[Row]) -> str:
    """Rows as a Markdown table. Losses are of greedy reward, against each base, except `loss`, of sampled reward; `area
    vs own` is of the area under greedy."""
    titles = (
        "method", "delay", "area", "area vs own", "to 98 %", "stale", "w < .05", "greedy", "pass@8", "vs own",
        "vs GRPO", "vs best", "sampled", "±", "loss", "entropy",
        "KL/token", "max grad", "max weight", "min ESS", "collapsed",
    )  # fmt: skip
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    for row in rows:
        greedy = [
            _percent(base.greedy_loss, base.greedy_loss_error) if base else ""
            for base in (row.own_base, row.grpo_base, row.best_base)
        ]
        delay = row.delay if row.steady_state else f"{row.delay} (not steady)"
        own = row.own_base
        speed = (
            "" if row.area is None else f"{row.area:.3f}",
            _percent(own.area_loss, own.area_loss_error) if own else "",
            "" if row.updates_to_98 is None else f"{row.updates_to_98:.0f}",
            f"{row.stale_share:.0%}" + (" (void)" if row.void else ""),
            "" if row.failures_below_05 is None else f"{row.failures_below_05:.2f}",
        )
        lines.append(
            f"| {row.method} | {delay} | {' | '.join(speed)} | {row.greedy:.3f} | {row.pass_at_8:.3f} "
            f"| {' | '.join(greedy)} | {row.last:.3f} | {row.last_deviation:.3f} "
            f"| {_percent(row.loss_vs_on_policy, row.loss_error)} | {row.entropy:.3f} | {row.kl_mean:.3f} "
            f"| {row.grad_norm_max:.3g} | {row.weight_max:.3g} | {row.ess_min:.3f} "
            f"| {len(row.collapsed_seeds)} of {len(row.seeds)} |"
        )
    return "\n".join(lines) + "\n"


def _percent(loss: float | None, error: float | None) -> str:
    if loss is None:
        return ""
    return f"{100 * loss:.1f} %" + ("" if error is None else f" ± {100 * error:.1f}")
