"""Query parameters that several routes of a board share, and the errors they document."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from fastapi import Query, Request

from p2prl.scoreboard.documents.api_schema import ErrorDocument
from p2prl.scoreboard.documents.page_cursor import CURSOR_PATTERN

MAX_ROWS = 500
"""Rows of one leaderboard page; bounds the work of one request."""

DEFAULT_ROWS = 50
"""Rows of a page of which no number is asked."""

MAX_POINTS = 5_000
"""Points of one reward curve."""

MAX_QUERY_CHARS = 100
"""Longest search, characters; more than any display name and peer id together."""

MAX_ID_CHARS = 100
"""Characters of a contributor's or a team's id in a path: a peer id has 52."""

LAST_STEP = (1 << 48) - 1

ERRORS: dict[int | str, dict[str, Any]] = {
    422: {"model": ErrorDocument, "description": "A parameter is outside its range."},
    503: {"model": ErrorDocument, "description": "The board has no run manifest yet, or cannot read its ledger."},
}
PAGE_ERRORS = {**ERRORS, 400: {"model": ErrorDocument, "description": "The cursor was not issued by this API."}}
ID_ERRORS = {**ERRORS, 404: {"model": ErrorDocument, "description": "The ledger has no receipt of this id."}}
TEAM_ERRORS = {**ERRORS, 404: {"model": ErrorDocument, "description": "The ledger has no membership in this team."}}

Rows = Annotated[int, Query(ge=1, le=MAX_ROWS)]
Window = Literal["today", "7d", "all"]
Cursor = Annotated[
    str | None,
    Query(
        max_length=100, json_schema_extra={"pattern": CURSOR_PATTERN}, description="next_cursor of the previous page."
    ),
]
Search = Annotated[
    str,
    Query(
        max_length=MAX_QUERY_CHARS,
        description=(
            "Only rows that match every word, case-insensitively: a word is part of the display name, or begins or "
            "ends the peer id. `total` then counts the matches; ranks stay those of the whole table."
        ),
    ),
]


def origin_of(request: Request) -> str:
    """The board's URL as the client wrote it, for copyable commands; a Host header with other characters is ignored."""
    origin = f"{request.url.scheme}://{request.url.netloc}"
    return origin if re.fullmatch(r"https?://[A-Za-z0-9.:\[\]-]{1,255}", origin) else "http://localhost"
