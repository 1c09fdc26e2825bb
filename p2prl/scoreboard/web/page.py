"""The board's page: templates rendered on the server, fully escaped, with no external resources.

A run's name and goal are signed by a stranger, which makes them authentic but not harmless. So the templates escape
everything, the content security policy allows no inline script or style, and no text becomes a link.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from p2prl.scoreboard.documents import api_views
from p2prl.scoreboard.documents.evaluation_view import evaluations_document
from p2prl.scoreboard.documents.leaderboard_view import leaderboard_document
from p2prl.scoreboard.ledger.ledger_sources import Snapshot
from p2prl.scoreboard.web.learning_curve import reward_chart
from p2prl.scoreboard.web.text_format import FILTERS

STATIC = Path(__file__).parent / "static"
"""Served under /static; part of the package."""

DEFAULT_ROWS = 50
"""Rows of the leaderboard on one page."""

_CURVE_POINTS = 240
"""Points drawn: about one every three pixels of the widest page."""

_EVALUATIONS = 12
"""Newest evaluations on the page; the API has more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PageRequest:
    """The part of the board that a visitor asked for."""

    show: int = DEFAULT_ROWS
    """Rows of each table."""
    cursor: str | None = None
    """Position where the page begins; None for the top of the leaderboard."""
    query: str = ""
    """Search over display names and peer ids; empty for none."""
    origin: str = "http://localhost"
    """The board's own URL, for commands to copy."""


def render_page(snapshot: Snapshot, request: PageRequest) -> str:
    """The whole page as HTML."""
    if snapshot.run is None or snapshot.board is None:
        return _environment.get_template("waiting.html").render(peers=snapshot.connected_peers or {})
    metrics = api_views.metrics_document(snapshot, from_step=0, to_step=(1 << 48) - 1, points=_CURVE_POINTS)
    return _environment.get_template("board.html").render(
        run=api_views.run_document(snapshot),
        people=leaderboard_document(
            snapshot, by="people", limit=request.show, cursor=request.cursor, query=request.query
        ),
        validators=leaderboard_document(snapshot, by="validators", limit=request.show, query=request.query),
        metrics=metrics,
        chart=reward_chart(metrics),
        points=_CURVE_POINTS,
        evaluations=evaluations_document(snapshot, limit=_EVALUATIONS),
        change=api_views.reward_change(snapshot.board),
        active_steps=api_views.ACTIVE_STEPS,
        request=request,
        default_rows=DEFAULT_ROWS,
    )


_environment = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters.update(FILTERS)
