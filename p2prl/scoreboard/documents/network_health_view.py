"""API document of the network's health: how well work flows from contributors into updates. Pure."""

from __future__ import annotations

from functools import lru_cache, reduce

from p2prl.scoreboard.documents.api_views import ACTIVE_STEPS, require_run, rounded
from p2prl.scoreboard.documents.page_schema import NetworkDocument
from p2prl.scoreboard.ledger.ledger_fold import BoardState
from p2prl.scoreboard.ledger.ledger_sources import Snapshot
from p2prl.scoreboard.ledger.total_rows import Step


def network_document(snapshot: Snapshot) -> NetworkDocument:
    """Health over the last `ACTIVE_STEPS` steps. Raises `NotReadyError` before the manifest is known."""
    _, board = require_run(snapshot)
    return _network(board)


@lru_cache(maxsize=4)
def _network(board: BoardState) -> NetworkDocument:
    """Counts over everybody, kept for the newest states: each page shows them, whatever its visitor asked for."""
    recent = sorted(board.steps)[-ACTIVE_STEPS:]
    steps = reduce(Step.merged, (board.steps[step] for step in recent), Step(last_ms=0))
    first = recent[0] if recent else 0
    groups = sum(steps.versions.values())
    newest = max(steps.versions, default=0)
    behind = sum((newest - version) * count for version, count in steps.versions.items())
    people = board.people.values()
    return NetworkDocument(
        steps=len(recent),
        credited_groups=steps.groups,
        rejected_groups=steps.rejected_groups,
        expired_groups=steps.expired_groups,
        active_contributors=sum(bool(recent) and person.last_step >= first for person in people),
        new_contributors=sum(bool(recent) and person.first_step >= first for person in people),
        versions_behind_mean=rounded(behind / groups) if groups else None,
        validators=len(board.validators),
        waiting_verdicts=board.waiting_verdicts,
        learner_errors=board.overruled_receipts,
    )
