"""Contributions over time as stacked SVG bars in a fixed box that the page's CSS stretches."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from p2prl.scoreboard.documents.page_schema import ActivityDocument

WIDTH, HEIGHT = 1000.0, 160.0
"""The box the bars are drawn in."""

_GAP = 0.18
"""Part of a column that stays empty."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a bar."""

    y: float
    height: float
    color: int
    """Number of the contributor among those named; the number of them for all others."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One hour or day."""

    x: float
    width: float
    label: str
    tokens: int
    groups: int
    contributors: int
    segments: list[Segment]


@dataclass(frozen=True, slots=True)
class WorkChart:
    """The bars and the labels of both axes."""

    bars: list[Bar]
    top_tokens: int
    """Tokens at the top of the box."""
    x_labels: list[str]


def work_chart(activity: ActivityDocument) -> WorkChart | None:
    """The stacked bars of an activity, or None without credited work."""
    top = max(activity.tokens, default=0)
    if top <= 0:
        return None
    pitch = WIDTH / len(activity.start)
    labels = [_label(start, activity.unit) for start in activity.start]
    bars = [
        Bar(
            x=round((place + _GAP / 2) * pitch, 2),
            width=round(pitch * (1 - _GAP), 2),
            label=labels[place],
            tokens=activity.tokens[place],
            groups=activity.groups[place],
            contributors=activity.contributors[place],
            segments=_segments(activity, place, top),
        )
        for place in range(len(activity.start))
    ]
    count = min(4, len(labels) - 1)
    shown = [labels[round(i * (len(labels) - 1) / count)] for i in range(count + 1)] if count else labels
    return WorkChart(bars=bars, top_tokens=top, x_labels=shown)


def _segments(activity: ActivityDocument, place: int, top: int) -> list[Segment]:
    """From the bottom up: the named contributors in their order, then all others."""
    parts = [*(series.tokens[place] for series in activity.top), activity.other_tokens[place]]
    segments, floor = [], HEIGHT
    for color, tokens in enumerate(parts):
        if tokens > 0:
            height = tokens / top * HEIGHT
            floor -= height
            segments.append(Segment(y=round(max(0.0, floor), 2), height=round(height, 2), color=color))
    return segments


def _label(start: str, unit: str) -> str:
    if not start:
        return "–"
    time = datetime.fromisoformat(start)
    return f"{time:%b} {time.day}, {time:%H:%M}" if unit == "hour" else f"{time:%b} {time.day}"
