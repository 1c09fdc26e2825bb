"""Summary of a board as one JSON value, for scripts (`p2prl board --json`)."""

from __future__ import annotations

from typing import Any

import msgspec

from p2prl.scoreboard.documents import api_views
from p2prl.scoreboard.documents.evaluation_view import evaluations_document
from p2prl.scoreboard.documents.ranked_leaderboard import leaderboard_document
from p2prl.scoreboard.ledger.ledger_sources import LedgerSource

FORMAT = "p2prl/board/v1"
"""First key of the summary; its number changes when a key's meaning does."""

_ROWS = 20
"""Rows of each table."""

_POINTS = 100
"""Points of the reward curve."""

_EVALUATIONS = 20
"""Newest evaluations, oldest first."""


def summary(source: LedgerSource) -> dict[str, Any]:
    """The current board: `format`, `run`, `people`, `validators`, `metrics`, `evaluations` (docs/leaderboard.md).

    The first 20 rows of each table, at most 100 points of the curve and the newest 20 evaluations. Raises
    `NotReadyError` while the run manifest is not known.
    """
    snapshot = source.snapshot()
    people = leaderboard_document(snapshot, by="people", limit=_ROWS)
    validators = leaderboard_document(snapshot, by="validators", limit=_ROWS)
    metrics = api_views.metrics_document(snapshot, from_step=0, to_step=(1 << 48) - 1, points=_POINTS)
    return {
        "format": FORMAT,
        "run": msgspec.to_builtins(api_views.run_document(snapshot)),
        "people": msgspec.to_builtins(people.people),
        "validators": msgspec.to_builtins(validators.validators),
        "metrics": msgspec.to_builtins(metrics),
        "evaluations": msgspec.to_builtins(evaluations_document(snapshot, limit=_EVALUATIONS).evaluations),
    }
