"""Cursors of the API's tables.

They hold the last row's sort key and not its number, so a page neither repeats nor skips a row when others overtake in
between.
"""

from __future__ import annotations

import re

from p2prl.errors import ConfigError

CURSOR_PATTERN = "^[0-9]{1,28}-[1-9A-HJ-NP-Za-km-z]{40,64}$"
"""A cursor: tokens and peer id of the last row of a page. An index has tokens times parameters, summed up over runs, in
their place: by the limits of both no more than 28 digits."""

ALL = "all"
"""The window that holds the whole run."""


def cursor_of(row: tuple[int, str, bytes]) -> str:
    """The cursor after a row, by (-tokens, peer id, public key)."""
    return f"{-row[0]}-{row[1]}"


def place_of(cursor: str) -> tuple[int, str]:
    """(-tokens, peer id) of a cursor's row. Raises `ConfigError` for one that this API did not issue."""
    if re.fullmatch(CURSOR_PATTERN, cursor) is None:
        raise ConfigError("the cursor was not issued by this API", remedy="Use next_cursor of the previous page.")
    tokens, _, peer_id = cursor.partition("-")
    return -int(tokens), peer_id
