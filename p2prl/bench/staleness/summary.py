"""Reported figures: one row per method and delay law, as JSON, CSV and a Markdown table."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev

from p2prl.bench.staleness.bases import BASELINE, ON_POLICY, Base, base_of, best_on_policy
from p2prl.bench.staleness.delay_laws import is_steady, parse_law
from p2prl.bench.staleness.measures import MEASURES
from p2prl.bench.staleness.results import ResultFile, Setting
from p2prl.bench.staleness.seed_log import SeedResult
from p2prl.bench.training.training_plan import TrainingPlan


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

    def base(run: Setting | None) -> Base | None:
        return None if run is None else base_of(run, results.of(run, seeds), found)

    def mean(measure: str) -> float:
        return fmean(result.last_of(measure) for result in found)

    grpo_base = base(Setting.of(setting.task, *BASELINE, plan))
    lasts = tuple(result.last for result in found)
    collapsed = tuple(result.seed for result in found if result.collapsed_at is not None)
    return Row(
        method=setting.method,
        delay=setting.delay,
        seeds=tuple(seeds),
        steady_state=is_steady(parse_law(setting.delay), setting.updates),
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
        own_base=base(Setting.of(setting.task, setting.method, ON_POLICY, plan)),
        best_base=base(best_on_policy(results, setting.task, plan, seeds)),
        collapsed=bool(collapsed),
        collapsed_seeds=collapsed,
        curves={measure: _mean_curve(found, measure) for measure in MEASURES},
    )


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
        for name in ("last_per_seed", "greedy_per_seed"):
            cells[name] = " ".join(f"{value:.4f}" for value in cells[name])
        for name in ("seeds", "collapsed_seeds"):
            cells[name] = " ".join(map(str, cells[name]))
        writer.writerow(cells)
    return text.getvalue()


def as_markdown(rows: Sequence[Row]) -> str:
    """Rows as a Markdown table. Losses are of greedy reward, against each base, except `loss`, of sampled reward."""
    titles = (
        "method", "delay", "greedy", "pass@8", "vs own", "vs GRPO", "vs best", "sampled", "±", "loss", "entropy",
        "KL/token", "max grad", "max weight", "min ESS", "collapsed",
    )  # fmt: skip
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    for row in rows:
        greedy = [
            _percent(base.greedy_loss, base.greedy_loss_error) if base else ""
            for base in (row.own_base, row.grpo_base, row.best_base)
        ]
        delay = row.delay if row.steady_state else f"{row.delay} (not steady)"
        lines.append(
            f"| {row.method} | {delay} | {row.greedy:.3f} | {row.pass_at_8:.3f} | {' | '.join(greedy)} "
            f"| {row.last:.3f} | {row.last_deviation:.3f} | {_percent(row.loss_vs_on_policy, row.loss_error)} "
            f"| {row.entropy:.3f} | {row.kl_mean:.3f} | {row.grad_norm_max:.3g} | {row.weight_max:.3g} "
            f"| {row.ess_min:.3f} | {len(row.collapsed_seeds)} of {len(row.seeds)} |"
        )
    return "\n".join(lines) + "\n"


def _percent(loss: float | None, error: float | None) -> str:
    if loss is None:
        return ""
    return f"{100 * loss:.1f} %" + ("" if error is None else f" ± {100 * error:.1f}")
