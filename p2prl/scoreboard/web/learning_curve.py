"""Reward curve as SVG paths in a fixed box that the page's CSS stretches; axis labels are outside it.

Drawn on the server, so that the page works without JavaScript and one template does all the escaping.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from p2prl.scoreboard.documents.api_schema import MetricsDocument

WIDTH, HEIGHT = 1000.0, 240.0
"""The box the paths are drawn in."""

_ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)
_INTERVALS = 4

_WIDE_SHARE = 0.4
"""A curve within 0..1 that spans more than this is shown on the full 0..1 axis."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Paths of the curve and the labels of its evenly spaced grid."""

    line: str
    """Path through the means, with gaps where nothing was credited."""
    band: str
    """Closed path around the 95 % interval; empty when no point has one."""
    dots: list[tuple[float, float]]
    """Points to mark; empty when there are more than 40."""
    y_labels: list[str]
    """Top to bottom, evenly spaced."""
    x_labels: list[str]
    """Left to right, evenly spaced."""
    low: float
    high: float
    first_step: int
    last_step: int


def reward_chart(metrics: MetricsDocument) -> Chart | None:
    """The chart of a reward curve, or None when no step has a reward yet."""
    rows = [
        (step, mean, low, high)
        for step, mean, low, high in zip(
            metrics.step, metrics.reward_mean, metrics.reward_low, metrics.reward_high, strict=True
        )
        if mean is not None
    ]
    if not rows:
        return None
    low, high = _domain(min(row[1] for row in rows), max(row[1] for row in rows))
    first, last = rows[0][0], rows[-1][0]
    span = max(1, last - first)

    def at(step: int, value: float) -> tuple[float, float]:
        x = WIDTH / 2 if last == first else (step - first) / span * WIDTH
        clipped = min(high, max(low, value))
        return round(x, 2), round(HEIGHT * (high - clipped) / (high - low), 2)

    points = [at(step, mean) for step, mean, _, _ in rows]
    upper = [at(step, mean if top is None else top) for step, mean, _, top in rows]
    lower = [at(step, mean if bottom is None else bottom) for step, mean, bottom, _ in rows]
    return Chart(
        line=_path(points),
        band=_path(upper + lower[::-1]) + "Z" if len(rows) > 1 else "",
        dots=points if len(points) <= 40 else [],
        y_labels=[_label(high - (high - low) * i / _INTERVALS, high - low) for i in range(_INTERVALS + 1)],
        x_labels=_x_labels(first, last),
        low=low,
        high=high,
        first_step=first,
        last_step=last,
    )


def _domain(low: float, high: float) -> tuple[float, float]:
    """A range of four round intervals around [low, high] with a margin, never empty. Success rates get 0 to 1."""
    if low >= 0 and high <= 1 and high - low > _WIDE_SHARE:
        return 0.0, 1.0
    margin = max((high - low) * 0.08, abs(high) * 1e-3, 1e-3)
    low, high = (0.0 if 0 <= low < (high - low) else low - margin), high + margin
    interval = _round_up((high - low) / _INTERVALS)
    bottom = math.floor(low / interval) * interval
    while bottom + _INTERVALS * interval < high:
        interval = _round_up(interval * 1.01)
        bottom = math.floor(low / interval) * interval
    return bottom, bottom + _INTERVALS * interval


def _round_up(interval: float) -> float:
    scale: float = 10.0 ** math.floor(math.log10(interval))
    return next((factor * scale for factor in _ROUND if factor * scale >= interval), 10 * scale)


def _label(value: float, span: float) -> str:
    digits = max(0, 2 - math.floor(math.log10(span)))
    text = f"{value:.{min(digits, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _x_labels(first: int, last: int) -> list[str]:
    if last == first:
        return [f"step {first:,}"]
    count = min(4, last - first)
    return [f"{round(first + (last - first) * i / count):,}" for i in range(count + 1)]


def _path(points: list[tuple[float, float]]) -> str:
    return "".join(f"{'L' if i else 'M'}{x:g} {y:g}" for i, (x, y) in enumerate(points))
