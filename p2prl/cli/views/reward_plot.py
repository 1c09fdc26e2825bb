"""Plot reward and staleness over the updates of a run (PNG)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_WINDOW = 10
"""Updates in the moving average."""


def plot_run(metrics: list[dict[str, Any]], before: float, after: float, path: Path) -> None:
    """Write the plot to `path`. `before` and `after` are rewards measured on fresh prompts."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    steps = [m["step"] for m in metrics]
    rewards = [m["reward"] for m in metrics]
    windows = [rewards[max(0, i - _WINDOW + 1) : i + 1] for i in range(len(rewards))]
    means = [sum(window) / len(window) for window in windows]
    figure, (top, bottom) = pyplot.subplots(
        2, 1, figsize=(8, 5.5), sharex=True, height_ratios=(3, 1), constrained_layout=True
    )
    top.plot(steps, rewards, color="#9db8d9", linewidth=0.8, label="groups of one update")
    top.plot(steps, means, color="#1f5fa8", linewidth=2, label=f"mean of {_WINDOW} updates")
    top.scatter([0, steps[-1]], [before, after], color="#d1495b", zorder=3, label="fresh prompts")
    top.set_ylabel("reward")
    top.set_ylim(0, 1)
    top.legend(loc="lower right", frameon=False)
    bottom.fill_between(steps, [m["staleness_max"] for m in metrics], color="#e6e6e6", label="max")
    bottom.plot(steps, [m["staleness_p50"] for m in metrics], color="#555555", label="p50")
    bottom.set_ylabel("staleness")
    bottom.set_xlabel("learner update")
    bottom.legend(loc="upper left", frameon=False)
    for axis in (top, bottom):
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
