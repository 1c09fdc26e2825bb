"""Picture of a run for link previews: its goal, its curve and how many people work on it."""

from __future__ import annotations

from p2prl.plain_text import counted
from p2prl.quantity_text import quantity
from p2prl.scoreboard.documents import api_views
from p2prl.scoreboard.documents.api_schema import MetricsDocument
from p2prl.scoreboard.ledger.ledger_sources import Snapshot
from p2prl.scoreboard.web.drawing import ACCENT, CARD, INK, LINE, SOFT, Picture, Point

WIDTH, HEIGHT = 1200, 630
"""The size that link previews expect."""

_POINTS = 160
_LEFT, _RIGHT = 72, WIDTH - 72
_CHART = (330, 520)
"""Top and bottom of the curve."""

_BAND = "#d2e1dc"


def share_picture(snapshot: Snapshot) -> bytes:
    """The picture as PNG. Raises `NotReadyError` before the manifest is known."""
    run = api_views.run_document(snapshot)
    metrics = api_views.metrics_document(snapshot, from_step=0, to_step=(1 << 48) - 1, points=_POINTS)
    picture = Picture(WIDTH, HEIGHT)
    picture.box(0, 0, 14, HEIGHT, fill=ACCENT)
    state = "ended" if run.finished else "training"
    picture.text((_LEFT, 56), f"{run.name} · {state}", size=26, color=ACCENT, bold=True)
    for row, line in enumerate(picture.wrapped(run.goal, size=46, width=_RIGHT - _LEFT, lines=3, bold=True)):
        picture.text((_LEFT, 104 + 62 * row), line, size=46, bold=True)
    _curve(picture, metrics)
    people = run.totals.contributors
    tokens = run.totals.verified_tokens
    facts = f"{counted(people, 'contributor')} · {quantity(tokens)} {'token' if tokens == 1 else 'tokens'}"
    picture.text((_LEFT, 556), facts, size=28, color=INK)
    invitation = "p2prl" if run.finished else "Lend your machine · p2prl join"
    width = picture.text_width(invitation, size=28, bold=True)
    picture.text((_RIGHT - width, 556), invitation, size=28, color=ACCENT, bold=True)
    return picture.png()


def _curve(picture: Picture, metrics: MetricsDocument) -> None:
    top, bottom = _CHART
    picture.box(_LEFT, top - 24, _RIGHT, bottom + 16, fill=CARD, radius=12)
    rows = [
        (step, mean, mean if low is None else low, mean if high is None else high)
        for step, mean, low, high in zip(
            metrics.step, metrics.reward_mean, metrics.reward_low, metrics.reward_high, strict=True
        )
        if mean is not None
    ]
    if not rows:
        picture.text((_LEFT + 24, top + 60), "The curve starts with the first verified group.", size=24, color=SOFT)
        return
    least, most = min(row[1] for row in rows), max(row[1] for row in rows)
    span, steps = max(most - least, 1e-9), max(1, rows[-1][0] - rows[0][0])

    def at(step: int, value: float) -> Point:
        clipped = min(most, max(least, value))
        x = _LEFT + 24 + (step - rows[0][0]) / steps * (_RIGHT - _LEFT - 48)
        return x, bottom - (clipped - least) / span * (bottom - top)

    picture.area([*(at(s, high) for s, _, _, high in rows), *(at(s, low) for s, _, low, _ in rows[::-1])], fill=_BAND)
    picture.line([(_LEFT + 24, bottom), (_RIGHT - 24, bottom)], color=LINE, width=2)
    picture.line([at(step, mean) for step, mean, _, _ in rows], color=ACCENT, width=5)
