"""Reward curve as SVG paths in a fixed box that the page's CSS stretches; axis labels are outside it.

Drawn on the server, so that the page works without JavaScript and one template does all the escaping.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime

from p2prl.scoreboard.documents.api_schema import MetricsDocument

WIDTH, HEIGHT = 1000.0, 240.0
"""The box the paths are drawn in."""

_ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)
_INTERVALS = 4

_DAY_MS = 86_400_000

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
    axis: str
    """`time` or `step`: a curve whose times are unusable is drawn by step."""
    first: int
    """Place of the left edge: learner step, or milliseconds since 1970."""
    last: int


def reward_chart(metrics: MetricsDocument, *, axis: str = "step") -> Chart | None:
    """The chart of a reward curve by learner `step` or by `time`, or None when no step has a reward yet."""
    places = _times(metrics) if axis == "time" else None
    axis = "step" if places is None else "time"
    rows = [
        (place, mean, low, high)
        for place, mean, low, high in zip(
            places or metrics.step, metrics.reward_mean, metrics.reward_low, metrics.reward_high, strict=True
        )
        if mean is not None
    ]
    if not rows:
        return None
    rows.sort(key=lambda row: row[0])
    low, high = _domain(min(row[1] for row in rows), max(row[1] for row in rows))
    first, last = rows[0][0], rows[-1][0]
    span = max(1, last - first)

    def at(place: int, value: float) -> tuple[float, float]:
        x = WIDTH / 2 if last == first else (place - first) / span * WIDTH
        clipped = min(high, max(low, value))
        return round(x, 2), round(HEIGHT * (high - clipped) / (high - low), 2)

    points = [at(place, mean) for place, mean, _, _ in rows]
    upper = [at(place, mean if top is None else top) for place, mean, _, top in rows]
    lower = [at(place, mean if bottom is None else bottom) for place, mean, bottom, _ in rows]
    return Chart(
        line=_path(points),
        band=_path(upper + lower[::-1]) + "Z" if len(rows) > 1 else "",
        dots=points if len(points) <= 40 else [],
        y_labels=[_label(high - (high - low) * i / _INTERVALS, high - low) for i in range(_INTERVALS + 1)],
        x_labels=_time_labels(first, last) if axis == "time" else _x_labels(first, last),
        low=low,
        high=high,
        axis=axis,
        first=first,
        last=last,
    )


def _times(metrics: MetricsDocument) -> list[int] | None:
    """Milliseconds since 1970 of each point; None unless each has a time and two of them differ."""
    if not all(metrics.ended_at):
        return None
    times = [round(datetime.fromisoformat(time).timestamp() * 1000) for time in metrics.ended_at if time]
    return times if len(set(times)) > 1 else None


def _time_labels(first: int, last: int) -> list[str]:
    """Five times in UTC: of the day within two days, with the date at the ends; dates over a longer span."""
    times = [datetime.fromtimestamp((first + (last - first) * i / 4) / 1000, UTC) for i in range(5)]
    if last - first > 4 * _DAY_MS:
        return [f"{time:%b} {time.day}" for time in times]
    return [f"{time:%b} {time.day}, {time:%H:%M}" if i in (0, 4) else f"{time:%H:%M}" for i, time in enumerate(times)]


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
