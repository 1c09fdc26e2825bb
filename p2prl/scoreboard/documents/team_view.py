"""API documents of teams: order, search, pages, and one team with its members. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from p2prl.errors import IdentityError
from p2prl.protocol.identity import PeerId, peer_id_of, public_key_of
from p2prl.protocol.membership_statements import TeamName, invite_text
from p2prl.scoreboard.display_names import display_name
from p2prl.scoreboard.documents.api_views import require_run, run_document
from p2prl.scoreboard.documents.page_cursor import ALL, cursor_of, place_of
from p2prl.scoreboard.documents.team_schema import (
    TeamDocument,
    TeamMemberDocument,
    TeamProfileDocument,
    TeamsDocument,
)
from p2prl.scoreboard.documents.work_over_time import team_activity, team_window_work
from p2prl.scoreboard.ledger.hourly_totals import NO_WORK, Work
from p2prl.scoreboard.ledger.ledger_fold import BoardState
from p2prl.scoreboard.ledger.ledger_sources import Snapshot

_MEMBERS_LISTED = 500
"""Members in the answer for one team: 100 KB."""

_Ranked = tuple[int, tuple[int, str, bytes]]
"""A row's place: rank, then (-tokens, peer id, public key)."""


def teams_document(
    snapshot: Snapshot, *, limit: int, cursor: str | None = None, query: str = "", window: str = ALL
) -> TeamsDocument:
    """A page of the teams, most credit first, equal credit by peer id; cursor, query and window as for contributors.

    Lists the teams that have a member or work. Raises `ConfigError` for a cursor that this API did not issue.
    """
    _, board = require_run(snapshot)
    words = query.lower().split()
    ranked = [place for place in _ranked(board, window) if _matches(board, place[1][2], words)]
    start = 0
    if cursor:
        last = place_of(cursor)
        start = next((i for i, (_, row) in enumerate(ranked) if row[:2] > last), len(ranked))
    page = ranked[start : start + limit]
    return TeamsDocument(
        window=window,
        total=len(ranked),
        teams=[_team(board, rank, key, window) for rank, (_, _, key) in page],
        next_cursor=cursor_of(page[-1][1]) if start + limit < len(ranked) else None,
    )


def team_document(snapshot: Snapshot, team_id: str) -> TeamProfileDocument | None:
    """One team by its peer id; None when the ledger has no membership in it."""
    _, board = require_run(snapshot)
    try:
        key = public_key_of(PeerId(team_id))
    except IdentityError:
        return None
    if key not in board.teams:
        return None
    team = board.teams[key]
    ranks = {each: rank for rank, (_, _, each) in _ranked(board, ALL)}
    everybody = {**dict.fromkeys(team.members, NO_WORK), **team.work}
    order = sorted(everybody, key=lambda owner: (-everybody[owner].tokens, peer_id_of(owner)))
    tokens = run_document(snapshot).totals.verified_tokens
    return TeamProfileDocument(
        # A team that nobody is in and nobody worked for stands in no table; it comes after all that do.
        team=_team(board, ranks.get(key, len(ranks) + 1), key, ALL),
        share=_share(team.tokens, tokens),
        contributors=len(everybody),
        members=[_member(board, key, owner, everybody[owner]) for owner in order[:_MEMBERS_LISTED]],
        activity=team_activity(board, key),
        invite=invite_text(team.name),
    )


def team_of(board: BoardState, owner: bytes) -> TeamName | None:
    """The signed name of the team that an owner is in now."""
    return _names(board).get(owner)


@lru_cache(maxsize=4)
def _names(board: BoardState) -> Mapping[bytes, TeamName]:
    return {owner: team.name for team in board.teams.values() for owner in team.members}


@lru_cache(maxsize=8)
def _ranked(board: BoardState, window: str) -> Sequence[_Ranked]:
    rows = _work(board, window)
    return tuple(enumerate(sorted((-work.tokens, peer_id_of(key), key) for key, work in rows.items()), 1))


def _work(board: BoardState, window: str) -> Mapping[bytes, Work]:
    if window != ALL:
        return team_window_work(board, window)
    return {key: Work(team.tokens, team.groups) for key, team in board.teams.items() if team.members or team.work}


def _matches(board: BoardState, key: bytes, words: list[str]) -> bool:
    """Whether every word is in the name, or begins or ends the peer id."""
    name, peer_id = board.teams[key].name.name.lower(), peer_id_of(key).lower()
    return all(word in name or peer_id.startswith(word) or peer_id.endswith(word) for word in words)


def _team(board: BoardState, rank: int, key: bytes, window: str) -> TeamDocument:
    team = board.teams[key]
    in_window = Work(team.tokens, team.groups) if window == ALL else team_window_work(board, window)[key]
    return TeamDocument(
        rank=rank,
        id=peer_id_of(key),
        name=team.name.name,
        members=len(team.members),
        credit=board.credit(team.tokens),
        window_credit=board.credit(in_window.tokens),
        window_groups=in_window.groups,
        window_tokens=in_window.tokens,
        groups=team.groups,
        verified_tokens=team.tokens,
    )


def _member(board: BoardState, key: bytes, owner: bytes, work: Work) -> TeamMemberDocument:
    team = board.teams[key]
    return TeamMemberDocument(
        id=peer_id_of(owner),
        handle=display_name(owner),
        is_member=owner in team.members,
        credit=board.credit(work.tokens),
        groups=work.groups,
        verified_tokens=work.tokens,
        share=_share(work.tokens, team.tokens),
    )


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0
