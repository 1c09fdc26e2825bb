"""Milestones of a run, counted from the ledger: what the page's news and the feed show. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from p2prl.protocol.identity import peer_id_of
from p2prl.scoreboard.display_names import display_name
from p2prl.scoreboard.documents.api_views import require_run
from p2prl.scoreboard.documents.page_schema import Milestone, MilestonesDocument
from p2prl.scoreboard.ledger.ledger_fold import BoardState
from p2prl.scoreboard.ledger.ledger_sources import Snapshot
from p2prl.time_text import time_text

MAX_MILESTONES = 200
"""The newest milestones that a board keeps: a feed reader asks long before this many more have come."""


def milestones_document(snapshot: Snapshot, *, limit: int) -> MilestonesDocument:
    """The newest `limit` milestones. Raises `NotReadyError` before the manifest is known."""
    _, board = require_run(snapshot)
    found = _milestones(board)
    return MilestonesDocument(total=len(found), milestones=list(found[:limit]))


@lru_cache(maxsize=2)
def _milestones(board: BoardState) -> tuple[Milestone, ...]:
    found = [*_of_the_run(board), *_of_contributors(board)]
    found.sort(key=lambda item: (-item[0], item[1].code))
    return tuple(milestone for _, milestone in found[:MAX_MILESTONES])


def _of_the_run(board: BoardState) -> Iterator[tuple[int, Milestone]]:
    titles = {"groups": "verified groups", "tokens": "verified tokens", "people": "contributors"}
    for (what, mark), at in board.marks.items():
        if (what, mark) == ("groups", 1):
            yield at, _milestone(at, "first-group", "The first group was verified: the run has begun")
        else:
            yield at, _milestone(at, f"{what}-{mark}", f"{mark:,} {titles[what]}")


def _of_contributors(board: BoardState) -> Iterator[tuple[int, Milestone]]:
    for owner, marks in board.own_marks.items():
        for mark, at in marks.items():
            peer = peer_id_of(owner)
            title = f"{display_name(owner)} passed {mark:,} verified groups"
            yield at, _milestone(at, f"groups-{mark}-{peer}", title, peer)


def _milestone(at_ms: int, code: str, title: str, contributor: str | None = None) -> Milestone:
    return Milestone(at=time_text(at_ms), code=code, title=title, contributor_id=contributor)
