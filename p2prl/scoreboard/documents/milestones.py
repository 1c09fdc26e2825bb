"""Milestones of a run, counted from the ledger: what the page's news and the feed show. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from p2prl.protocol.identity import peer_id_of
from p2prl.scoreboard.display_names import display_name
from p2prl.scoreboard.documents.api_views import require_run, time_text
from p2prl.scoreboard.documents.page_schema import Milestone, MilestonesDocument
from p2prl.scoreboard.ledger.hourly_totals import HOUR_MS
from p2prl.scoreboard.ledger.ledger_fold import BoardState
from p2prl.scoreboard.ledger.ledger_sources import Snapshot

_GROUPS = tuple(10**power for power in range(1, 13))
_PEOPLE = (10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000)
_TOKENS = tuple(10**power for power in range(5, 16))

_OWN_GROUPS = (100, 1_000, 10_000, 100_000, 1_000_000)
"""Groups at which a contributor is named: the first takes a small GPU an evening."""

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
    joined: dict[int, int] = {}
    for person in board.people.values():
        joined[person.first_step] = joined.get(person.first_step, 0) + 1
    groups = tokens = people = 0
    for number in sorted(board.steps):
        step = board.steps[number]
        before = groups, tokens, people
        groups, tokens, people = groups + step.groups, tokens + step.tokens, people + joined.get(number, 0)
        at = step.last_ms
        if groups and not before[0]:
            yield at, _milestone(at, "first-group", "The first group was verified: the run has begun")
        for mark in _passed(_GROUPS, before[0], groups):
            yield at, _milestone(at, f"groups-{mark}", f"{mark:,} verified groups")
        for mark in _passed(_TOKENS, before[1], tokens):
            yield at, _milestone(at, f"tokens-{mark}", f"{mark:,} verified tokens")
        for mark in _passed(_PEOPLE, before[2], people):
            yield at, _milestone(at, f"people-{mark}", f"{mark:,} contributors")


def _of_contributors(board: BoardState) -> Iterator[tuple[int, Milestone]]:
    # Few contributors pass the first mark; the hours of the others need not be read.
    groups = {owner: 0 for owner, person in board.people.items() if person.credited_groups >= _OWN_GROUPS[0]}
    newest_ms = board.newest_ms() or 0
    for hour in sorted(board.hours) if groups else ():
        for owner, work in board.hours[hour].items():
            if owner in groups:
                before, groups[owner] = groups[owner], groups[owner] + work.groups
                for mark in _passed(_OWN_GROUPS, before, groups[owner]):
                    at, peer = min((hour + 1) * HOUR_MS, newest_ms), peer_id_of(owner)
                    title = f"{display_name(owner)} passed {mark:,} verified groups"
                    yield at, _milestone(at, f"groups-{mark}-{peer}", title, peer)


def _passed(marks: tuple[int, ...], before: int, after: int) -> list[int]:
    """The highest of the marks that were passed at once, or none."""
    return [mark for mark in marks if before < mark <= after][-1:]


def _milestone(at_ms: int, code: str, title: str, contributor: str | None = None) -> Milestone:
    return Milestone(at=time_text(at_ms), code=code, title=title, contributor_id=contributor)
