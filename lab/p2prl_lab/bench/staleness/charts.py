"""Learning curves (PNG): one panel per delay distribution, one line per method, the range of seeds shaded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from p2prl_lab.bench.staleness.results import ResultFile, Setting
from p2prl_lab.bench.training.training_plan import TrainingPlan

_COLUMNS = 3


def plot_curves(
    results: ResultFile,
    task: str,
    methods: Sequence[str],
    plans: Mapping[str, TrainingPlan],
    seeds: Sequence[int],
    path: Path,
    *,
    measure: str = "greedy",
) -> None:
    """Plot one of `MEASURES` to `path`, skipping combinations that were not run. `plans` has each delay's plan."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = min(_COLUMNS, len(plans))
    lines = math.ceil(len(plans) / columns)
    figure, axes = pyplot.subplots(
        lines, columns,
        figsize=(4.4 * columns + 2.2, 3.2 * lines + 0.2 * len(methods)),
        sharey=True, squeeze=False, constrained_layout=True,
    )  # fmt: skip
    colors = pyplot.get_cmap("tab10" if len(methods) <= 10 else "tab20").colors
    for axis in axes.flat[len(plans) :]:
        axis.set_visible(False)
    for axis, (delay, plan) in zip(axes.flat, plans.items(), strict=False):
        for index, method in enumerate(methods):
            found = results.of(Setting.of(task, method, delay, plan), seeds)
            if not found:
                continue
            updates = [update for update, _ in found[0].curve(measure)]
            rewards = [[reward for _, reward in result.curve(measure)] for result in found]
            means = [sum(column) / len(column) for column in zip(*rewards, strict=True)]
            color = colors[index % len(colors)]
            axis.plot(updates, means, label=method, linewidth=1.6, color=color)
            axis.fill_between(
                updates,
                [min(column) for column in zip(*rewards, strict=True)],
                [max(column) for column in zip(*rewards, strict=True)],
                color=color,
                alpha=0.12,
                linewidth=0,
            )
        axis.set_title(delay, fontsize=10)
        axis.set_xlabel("learner update")
        axis.set_ylim(0, 1)
        axis.spines[["top", "right"]].set_visible(False)
    axes.flat[0].set_ylabel(f"{measure} reward on fresh prompts")
    # A method may be missing from some panels, so collect the legend from all of them.
    lines_by_method = {line.get_label(): line for axis in axes.flat for line in axis.get_lines()}
    figure.legend(lines_by_method.values(), lines_by_method.keys(), loc="outside lower left", frameon=False, fontsize=8)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
