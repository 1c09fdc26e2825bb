"""SQLite files of this project, opened in one way."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Literal


def open_database(
    path: Path, *, synchronous: Literal["FULL", "NORMAL"], check_same_thread: bool = True
) -> sqlite3.Connection:
    """Open or create a file; each statement commits by itself unless it begins a transaction. Raises `OSError` and
    `sqlite3.Error`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=check_same_thread)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute(f"PRAGMA synchronous={synchronous}")
    # Sorts of some ten thousand rows go to a file otherwise, in the folder for temporary files that SQLite chose when
    # it was loaded. A worker that has confined itself since cannot write there, and the statement fails.
    database.execute("PRAGMA temp_store=MEMORY")
    return database
