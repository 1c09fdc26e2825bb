"""Report of the comparison: one row per case, as JSON, CSV, a Markdown table and curves (PNG)."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev

from p2prl_lab.bench.comparison.on_policy_training import RecipeResult

_AXES = {
    "success": "success on fresh prompts",
    "tokens": "tokens per completion",
    "true_steps": "true steps per completion",
    "readable": "share of readable completions",
}


@dataclass(frozen=True, kw_only=True)
class CaseRow:
    """One recipe on one reward. `last` figures are means over the last three evaluations, then over seeds."""

    recipe: str
    reward: str
    best: float
    """Success at each seed's best evaluation."""
    last: float
    """Success."""
    last_per_seed: tuple[float, ...]
    last_deviation: float
    """Standard deviation of `last` over seeds; 0 for one seed."""
    tokens: float
    """Last mean length of a completion."""
    true_steps: float
    """Last mean number of true steps in a completion: the raw process reward."""
    readable: float
    """Last share of completions that finish and that the scorer's grammar accepts."""
    grad_norm_max: float
    """Over seeds and updates, before the clip."""


def row_of(recipe: str, reward: str, found: Sequence[RecipeResult]) -> CaseRow:
    """Row of one case; `found` holds at least one seed."""
    lasts = tuple(result.last("success") for result in found)
    return CaseRow(
        recipe=recipe,
        reward=reward,
        best=fmean(result.best for result in found),
        last=fmean(lasts),
        last_per_seed=lasts,
        last_deviation=stdev(lasts) if len(lasts) > 1 else 0.0,
        tokens=fmean(result.last("tokens") for result in found),
        true_steps=fmean(result.last("true_steps") for result in found),
        readable=fmean(result.last("readable") for result in found),
        grad_norm_max=max(result.grad_norm_max for result in found),
    )


def as_documents(rows: Sequence[CaseRow]) -> list[dict[str, object]]:
    """Rows as JSON objects."""
    return [asdict(row) | {"last_per_seed": list(row.last_per_seed)} for row in rows]


def as_csv(rows: Sequence[CaseRow]) -> str:
    """Rows as CSV with a header; `last_per_seed` joined by spaces."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(CaseRow.__dataclass_fields__), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(asdict(row) | {"last_per_seed": " ".join(f"{last:.4f}" for last in row.last_per_seed)})
    return text.getvalue()


def as_markdown(rows: Sequence[CaseRow]) -> str:
    """Rows as a Markdown table."""
    lines = [
        "| recipe | reward | success, best | last | ± | tokens | true steps | readable |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines.extend(
        f"| {row.recipe} | {row.reward} | {row.best:.3f} | {row.last:.3f} | {row.last_deviation:.3f} "
        f"| {row.tokens:.2f} | {row.true_steps:.2f} | {row.readable:.3f} |"
        for row in rows
    )
    return "\n".join(lines) + "\n"


def plot_cases(curves: Mapping[str, Sequence[RecipeResult]], shown: Sequence[str], path: Path) -> None:
    """Plot to `path`: one panel per figure of `shown`, one line per case, the range of seeds shaded."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, len(shown), figsize=(5.2 * len(shown), 4.0), squeeze=False, constrained_layout=True
    )
    colors = pyplot.get_cmap("tab10" if len(curves) <= 10 else "tab20").colors
    for axis, name in zip(axes.flat, shown, strict=True):
        for index, (label, found) in enumerate(curves.items()):
            updates = [each.update for each in found[0].curve]
            columns = list(zip(*([getattr(look, name) for look in result.curve] for result in found), strict=True))
            color = colors[index % len(colors)]
            axis.plot(updates, [fmean(column) for column in columns], label=label, linewidth=1.6, color=color)
            axis.fill_between(
                updates, [min(c) for c in columns], [max(c) for c in columns], color=color, alpha=0.12, linewidth=0
            )
        axis.set_ylabel(_AXES[name])
        axis.set_xlabel("batches trained on")
        axis.set_ylim(0, 1 if name in ("success", "readable") else None)
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
