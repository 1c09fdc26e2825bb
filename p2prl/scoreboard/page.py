"""The page: one template rendered on the server, escaped throughout, with nothing from anywhere else.

A run's name and goal were typed by a stranger and signed by them, which makes them authentic, not harmless. So the
template escapes everything, the policy below lets no inline script or style run, and no text becomes a link.
"""

from __future__ import annotations

import math
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from p2prl.scoreboard import views
from p2prl.scoreboard.learning_curve import reward_chart
from p2prl.scoreboard.ledger_sources import Snapshot

STATIC = Path(__file__).parent / "static"
"""Served under /static; part of the package."""

PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}
"""Sent with every answer."""

_CURVE_POINTS = 240
"""Points drawn: about one every three pixels of the widest page."""

_SHORT_ID = 6
"""Characters of a peer id shown beside a handle: 58^6 = 38 billion, enough to tell two like names apart."""


def render_page(snapshot: Snapshot, *, show: int) -> str:
    """The whole page as HTML, with the first `show` rows of the leaderboard."""
    if snapshot.run is None:
        return _environment.get_template("waiting.html").render(neighbours=snapshot.neighbours or {})
    metrics = views.metrics_document(snapshot, from_step=0, to_step=(1 << 48) - 1, points=_CURVE_POINTS)
    return _environment.get_template("board.html").render(
        run=views.run_document(snapshot),
        people=views.leaderboard_document(snapshot, by="people", limit=show, cursor=None),
        validators=views.leaderboard_document(snapshot, by="validators", limit=show, cursor=None),
        metrics=metrics,
        chart=reward_chart(metrics),
        points=_CURVE_POINTS,
        show=show,
    )


def quantity(value: float) -> str:
    """A number for people: three significant digits, with k, M, G and T from ten thousand on, never an exponent."""
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit and abs(value) >= 9_999.5:
            return f"{_significant(value / unit)} {name}"
    return _significant(value) if value != int(value) else f"{value:,.0f}"


def _significant(value: float) -> str:
    """Three significant digits in plain decimals; whole numbers keep all of theirs."""
    if value == 0:
        return "0"
    digits = max(0, min(12, 2 - math.floor(math.log10(abs(value)))))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(value: float) -> str:
    """A share as per cent, whole unless that would hide something."""
    if 0.99 < value < 1 or 0 < value < 0.01:
        return f"{100 * value:.1f} %" if 0.001 <= value <= 0.999 else f"{100 * value:.2f} %"
    return f"{100 * value:.0f} %"


def words(code: str) -> str:
    """A reason code as words."""
    return code.replace("_", " ")


def short_id(peer_id: str) -> str:
    """The end of a peer id; the beginning is the same for every Ed25519 key."""
    return peer_id[-_SHORT_ID:]


def moment(time: str | None) -> str:
    """An RFC 3339 time for people."""
    return "never" if time is None else time.replace("T", " ").replace("Z", " UTC")


_environment = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters.update(quantity=quantity, percent=percent, words=words, short_id=short_id, moment=moment)
