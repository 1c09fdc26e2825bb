"""Pictures (SVG) of the trust benchmark: detection by margin and size, and detection against false rejects."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from p2prl_lab.bench.trust.benchmark import Rows
from p2prl_lab.bench.trust.roc import CLASSES, LAUNDERED

ROC_FILE, POWER_FILE = "trust_roc.svg", "trust_power.svg"

_FIXED = {"svg.hashsalt": "p2prl", "svg.fonttype": "none", "font.family": "sans-serif"}
"""So that the same rows give the same bytes."""

_COLORS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#9c6b4e")

Row = dict[str, Any]


def draw_charts(rows: Rows, folder: Path) -> list[Path]:
    """Draw what there are rows for; returns the files."""
    drawn = []
    if rows["power"]:
        drawn.append(folder / POWER_FILE)
        draw_power(rows["power"], drawn[-1])
    if rows["roc"]:
        drawn.append(folder / ROC_FILE)
        draw_roc(rows["roc"], drawn[-1])
    return drawn


def draw_power(rows: Sequence[Row], path: Path) -> None:
    """Share of groups with one invented token that are found, by its margin, beside the most noise that is honest: a
    panel for each number type, a line for each size of a group."""
    usual = [row for row in rows if row["policy"] == "usual" and row["temperature"] == 1.0]
    dtypes = list(dict.fromkeys(row["dtype"] for row in usual))
    figure, axes = _panels(1, len(dtypes))
    for axis, dtype in zip(axes.flat, dtypes, strict=True):
        of_dtype = [row for row in usual if row["dtype"] == dtype]
        mine = [row for row in of_dtype if row["noise"] == max(each["noise"] for each in of_dtype)]
        for color, size in zip(_COLORS, sorted({row["tokens"] for row in mine}), strict=False):
            points = sorted(
                (row["margin"], 1 - row["credited"] / row["groups"]) for row in mine if row["tokens"] == size
            )
            axis.plot(*zip(*points, strict=True), label=f"{size:,} tokens", color=color, marker="o", markersize=3)
        axis.axvline(1.0, color="#999999", linewidth=0.8, linestyle=":")
        axis.set_title(f"{dtype}, noise {mine[0]['noise']:g} logits", fontsize=10)
        axis.set_xscale("log", base=2)
        axis.set_xticks([0.25, 0.5, 1.0, 2.0, 4.0], ["¼", "½", "1", "2", "4"])
    figure.supxlabel("nats that the token lies below the seeded draw", fontsize=10)
    _finish(figure, axes, "share of groups found", path)


def draw_roc(rows: Sequence[Row], path: Path) -> None:
    """Found against rejected in error: a row of panels for each class of engines, a column for each size. The ring is
    where the product stands."""
    sizes = sorted({row["tokens"] for row in rows})
    classes = [name for name in CLASSES if any(row["engines"] == name for row in rows)]
    figure, axes = _panels(len(classes), len(sizes))
    least = 10.0**-4
    for line, engines in enumerate(classes):
        for column, size in enumerate(sizes):
            axis = axes[line, column]
            for color, cheat in zip(_COLORS, LAUNDERED, strict=False):
                curve = [row for row in rows if (row["engines"], row["tokens"], row["cheat"]) == (engines, size, cheat)]
                best: dict[float, float] = {1.0: 1.0}
                for row in curve:
                    place = max(least, row["false_rejects"])
                    best[place] = max(best.get(place, 0.0), row["found"])
                points = sorted(best.items())
                axis.plot(*zip(*points, strict=True), label=cheat, color=color, drawstyle="steps-post")
                here = next(row for row in curve if row["threshold"] == 1.0)
                axis.plot(
                    max(least, here["false_rejects"]), here["found"], "o", markersize=6, markeredgecolor=color,
                    markerfacecolor="none",
                )  # fmt: skip
            axis.set_xscale("log")
            axis.set_xlim(least / 1.5, 1.0)
            axis.set_xticks([least, 1e-3, 1e-2, 1e-1, 1.0], ["0", ".001", ".01", ".1", "1"])
            axis.minorticks_off()
            axis.set_title(f"{engines}, {size} tokens", fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel("share of honest groups rejected")
    _finish(figure, axes, "share of forged groups found", path)


def _panels(lines: int, columns: int) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update(_FIXED)
    from matplotlib import pyplot

    size = (3.3 * columns + 1.7, 2.5 * lines + 0.4)
    figure, axes = pyplot.subplots(lines, columns, figsize=size, sharey=True, squeeze=False, constrained_layout=True)
    return figure, axes


def _finish(figure: Any, axes: Any, label: str, path: Path) -> None:
    from matplotlib import pyplot

    for axis in axes.flat:
        axis.set_ylim(-0.03, 1.03)
        axis.spines[["top", "right"]].set_visible(False)
    for first in axes[:, 0]:
        first.set_ylabel(label)
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", metadata={"Date": None})
    pyplot.close(figure)
