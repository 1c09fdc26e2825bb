"""API documents of work over time and of the leaderboard's windows, from the hours of the ledger. Pure.

Windows end with the ledger's newest receipt and not with the reader's clock, so two boards with the same head show the
same numbers, and a finished run still shows its last day.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from p2prl.protocol.identity import peer_id_of
from p2prl.scoreboard.display_names import display_name
from p2prl.scoreboard.documents.api_views import require_run
from p2prl.scoreboard.documents.page_schema import ActivityDocument, ActivitySeries
from p2prl.scoreboard.ledger.hourly_totals import HOUR_MS, HOURS_PER_DAY, NO_WORK, Hours, Work, team_and_owner
from p2prl.scoreboard.ledger.ledger_fold import BoardState
from p2prl.scoreboard.ledger.ledger_sources import Snapshot
from p2prl.time_text import time_text

WINDOW_DAYS = {"today": 1, "7d": 7}
"""Windows of the leaderboard, in days (UTC) up to that of the newest receipt."""

MAX_COLUMNS = 48
"""Hours or days in one answer: two days by the hour, seven weeks by the day, and bars that a phone can show."""

MIN_COLUMNS = 12
"""Columns in the answer for a run that has just begun: one bar across a page would look like a rule."""

TOP = 6
"""Contributors shown by name in the stack: as many colors as people tell apart."""


def newest_hour(board: BoardState) -> int | None:
    """The newest hour with credited work, since 1970."""
    return max(board.hours, default=None)


@lru_cache(maxsize=4)
def window_work(board: BoardState, window: str) -> Mapping[bytes, Work]:
    """Credited work of each owner within a window of `WINDOW_DAYS`."""
    total: dict[bytes, Work] = {}
    for owner, work in _in_window(board, board.hours, window):
        total[owner] = total.get(owner, NO_WORK).plus(*work)
    return total


@lru_cache(maxsize=4)
def team_window_work(board: BoardState, window: str) -> Mapping[bytes, Work]:
    """Credited work of each team within a window of `WINDOW_DAYS`."""
    total: dict[bytes, Work] = {}
    for row, work in _in_window(board, board.team_hours, window):
        team, _ = team_and_owner(row)
        total[team] = total.get(team, NO_WORK).plus(*work)
    return total


def _in_window(board: BoardState, hours: Hours, window: str) -> Iterator[tuple[bytes, Work]]:
    """What `hours` hold within a window; windows end with the newest hour of the whole board."""
    newest = newest_hour(board)
    if newest is None:
        return
    first_day = newest // HOURS_PER_DAY - WINDOW_DAYS[window] + 1
    for hour, rows in hours.items():
        if hour // HOURS_PER_DAY >= first_day:
            yield from rows.items()


def activity_document(snapshot: Snapshot, *, top: int = TOP) -> ActivityDocument:
    """Credited work of the run over time, with the `top` contributors by name."""
    _, board = require_run(snapshot)
    return _activity(board, top)


@lru_cache(maxsize=4)
def _activity(board: BoardState, top: int) -> ActivityDocument:
    columns = _columns(board)
    total: dict[bytes, int] = {}
    for owners in columns.values():
        for owner, work in owners.items():
            total[owner] = total.get(owner, 0) + work.tokens
    chosen = sorted(total, key=lambda owner: (-total[owner], owner))[:top]
    series = [
        ActivitySeries(
            id=peer_id_of(owner),
            handle=display_name(owner),
            tokens=[owners.get(owner, NO_WORK).tokens for owners in columns.values()],
        )
        for owner in chosen
    ]
    tokens = [sum(work.tokens for work in owners.values()) for owners in columns.values()]
    named = [sum(each.tokens[place] for each in series) for place in range(len(columns))]
    return _document(board, columns, tokens, series, [all_ - some for all_, some in zip(tokens, named, strict=True)])


def owner_activity(board: BoardState, owner: bytes) -> ActivityDocument:
    """Credited work of one owner over time, with the columns of the whole run."""
    columns = {start: {owner: owners[owner]} if owner in owners else {} for start, owners in _columns(board).items()}
    tokens = [owners.get(owner, NO_WORK).tokens for owners in columns.values()]
    return _document(board, columns, tokens, [], tokens)


def team_activity(board: BoardState, team: bytes) -> ActivityDocument:
    """Credited work of one team over time, with the columns of the whole run."""
    width = _width(board)
    columns: dict[int, dict[bytes, Work]] = {start: {} for start in _columns(board)}
    for hour, rows in board.team_hours.items():
        column = columns.get(hour // width * width)
        if column is None:
            continue
        for row, work in rows.items():
            of_team, owner = team_and_owner(row)
            if of_team == team:
                column[owner] = column.get(owner, NO_WORK).plus(*work)
    tokens = [sum(work.tokens for work in owners.values()) for owners in columns.values()]
    return _document(board, columns, tokens, [], tokens)


def active_days(board: BoardState, owner: bytes) -> int:
    """Days (UTC) on which an owner has credited work."""
    return len({hour // HOURS_PER_DAY for hour, owners in board.hours.items() if owner in owners})


def _document(
    board: BoardState,
    columns: Mapping[int, Mapping[bytes, Work]],
    tokens: list[int],
    series: list[ActivitySeries],
    others: list[int],
) -> ActivityDocument:
    return ActivityDocument(
        unit="hour" if _width(board) == 1 else "day",
        start=[time_text(hour * HOUR_MS) or "" for hour in columns],
        tokens=tokens,
        groups=[sum(work.groups for work in owners.values()) for owners in columns.values()],
        contributors=[len(owners) for owners in columns.values()],
        top=series,
        other_tokens=others,
    )


def _width(board: BoardState) -> int:
    """Hours in one column: one while all of the run fits."""
    return 1 if not board.hours or max(board.hours) - min(board.hours) < MAX_COLUMNS else HOURS_PER_DAY


@lru_cache(maxsize=2)
def _columns(board: BoardState) -> Mapping[int, Mapping[bytes, Work]]:
    """Work by the hour at which a column begins, oldest first, without gaps."""
    newest = newest_hour(board)
    if newest is None:
        return {}
    width = _width(board)
    last = newest // width
    first = max(min(min(board.hours) // width, last - MIN_COLUMNS + 1), last - MAX_COLUMNS + 1)
    columns: dict[int, dict[bytes, Work]] = {place * width: {} for place in range(first, last + 1)}
    for hour, owners in board.hours.items():
        column = columns.get(hour // width * width)
        if column is not None:
            for owner, work in owners.items():
                column[owner] = column.get(owner, NO_WORK).plus(*work)
    return columns
