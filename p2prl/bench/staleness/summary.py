"""Reported figures: one row per method and delay distribution, as JSON, CSV and a Markdown table."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev

from p2prl.bench.staleness.results import ResultFile, Setting
from p2prl.bench.staleness.seed_log import SeedResult
from p2prl.bench.training.training_plan import TrainingPlan

BASELINE = ("grpo", "const:0")
"""Baseline that every loss is relative to, in the same setting."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method under one delay distribution."""

    method: str
    delay: str
    best: float
    """Mean over seeds of each seed's best evaluation."""
    last: float
    """Mean over seeds of each seed's last three evaluations."""
    last_per_seed: tuple[float, ...]
    last_deviation: float
    """Standard deviation of `last` over seeds; 0 for one seed."""
    loss_vs_on_policy: float | None
    """1 − last / last of on-policy GRPO on the same seeds; None when that was not run."""
    loss_error: float | None
    """Standard error of the loss, comparing each seed with on-policy GRPO on that seed; None for one seed."""
    grad_norm_max: float
    """Over seeds and updates, before the clip."""
    weight_max: float
    ess_min: float
    kl_mean: float
    """Mean over seeds and updates, nats per token."""


def rows_of(
    results: ResultFile, task: str, methods: Sequence[str], delays: Sequence[str], plan: TrainingPlan, seeds: range
) -> list[Row]:
    """One row per method and delay with at least one finished seed, in the order given."""
    rows = []
    for method in methods:
        for delay in delays:
            found = results.of(Setting.of(task, method, delay, plan), seeds)
            if found:
                rows.append(_row(method, delay, found, _baseline(results, task, plan, [r.seed for r in found])))
    return rows


def on_policy_last(results: ResultFile, task: str, plan: TrainingPlan, seeds: Sequence[int]) -> float | None:
    """`last` of the baseline over exactly these seeds, or None when one of them is missing."""
    found = _baseline(results, task, plan, seeds)
    return fmean(found) if found else None


def _baseline(results: ResultFile, task: str, plan: TrainingPlan, seeds: Sequence[int]) -> list[float]:
    """`last` of the baseline on each of these seeds, in order; empty when one of them is missing."""
    found = results.of(Setting.of(task, *BASELINE, plan), seeds)
    return [result.last for result in found] if len(found) == len(seeds) else []


def _row(method: str, delay: str, found: Sequence[SeedResult], baseline: Sequence[float]) -> Row:
    lasts = tuple(result.last for result in found)
    # A hard seed is hard for every method, so comparing per seed removes most of that noise.
    losses = [1 - last / own for last, own in zip(lasts, baseline, strict=True) if own] if baseline else []
    return Row(
        method=method,
        delay=delay,
        best=fmean(result.best for result in found),
        last=fmean(lasts),
        last_per_seed=lasts,
        last_deviation=stdev(lasts) if len(lasts) > 1 else 0.0,
        loss_vs_on_policy=1 - fmean(lasts) / fmean(baseline) if losses else None,
        loss_error=stdev(losses) / len(losses) ** 0.5 if len(losses) > 1 else None,
        grad_norm_max=max(result.grad_norm_max for result in found),
        weight_max=max(result.weight_max for result in found),
        ess_min=min(result.ess_min for result in found),
        kl_mean=fmean(result.kl_mean for result in found),
    )


def as_documents(rows: Sequence[Row]) -> list[dict[str, object]]:
    """Rows as JSON objects."""
    return [asdict(row) | {"last_per_seed": list(row.last_per_seed)} for row in rows]


def as_csv(rows: Sequence[Row]) -> str:
    """Rows as CSV with a header; `last_per_seed` joined by spaces."""
    text = io.StringIO()
    names = list(Row.__dataclass_fields__)
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(asdict(row) | {"last_per_seed": " ".join(f"{last:.4f}" for last in row.last_per_seed)})
    return text.getvalue()


def as_markdown(rows: Sequence[Row]) -> str:
    """Rows as a Markdown table."""
    lines = [
        "| method | delay | best | last | ± | loss | max grad | max weight | min ESS | KL/token |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        loss = "" if row.loss_vs_on_policy is None else f"{100 * row.loss_vs_on_policy:.1f} %"
        if row.loss_error is not None:
            loss += f" ± {100 * row.loss_error:.1f}"
        lines.append(
            f"| {row.method} | {row.delay} | {row.best:.3f} | {row.last:.3f} | {row.last_deviation:.3f} | {loss} "
            f"| {row.grad_norm_max:.3g} | {row.weight_max:.3g} | {row.ess_min:.3f} | {row.kl_mean:.3f} |"
        )
    return "\n".join(lines) + "\n"
