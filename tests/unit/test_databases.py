"""SQLite files: what is committed survives, and large sorts need no folder for temporary files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from p2prl.confinement import linux
from p2prl.databases import open_database

ROWS = 40_000
"""A sort of so many rows, with a digest each, does not fit SQLite's own cache."""

CONFINED = """
import sys
from pathlib import Path
from p2prl.confinement.role_confinement import confine_calls, confine_files
from p2prl.databases import open_database
own = Path(sys.argv[1])
protection = confine_calls(confine_files(own))
database = open_database(own / "rows.db", synchronous="FULL")
rows = database.execute("SELECT name, number FROM rows ORDER BY number").fetchall()
print(str(protection).split(":")[0], len(rows), rows[0][1])
"""


def filled(path: Path) -> None:
    database = open_database(path, synchronous="NORMAL")
    database.execute("CREATE TABLE rows (name BLOB PRIMARY KEY, number REAL)")
    database.execute("BEGIN")
    rows = ((number.to_bytes(32), float(-number)) for number in range(ROWS))
    database.executemany("INSERT INTO rows VALUES (?, ?)", rows)
    database.execute("COMMIT")
    database.close()


@pytest.mark.skipif(
    sys.platform != "linux" or linux.landlock_version() == 0, reason="where nothing confines, every folder is open"
)
def test_a_confined_worker_sorts_more_than_fits_a_cache(tmp_path: Path) -> None:
    filled(tmp_path / "rows.db")
    done = subprocess.run([sys.executable, "-c", CONFINED, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout == f"Confined {ROWS} {1.0 - ROWS}\n", done.stderr


def test_a_file_and_its_folder_are_made_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rows.db"
    filled(path)
    again = open_database(path, synchronous="FULL")
    assert again.execute("SELECT COUNT(*) FROM rows").fetchone() == (ROWS,)
    assert again.execute("PRAGMA journal_mode").fetchone() == ("wal",), "readers do not wait for a writer"
    assert again.execute("PRAGMA synchronous").fetchone() == (2,)
    again.close()
