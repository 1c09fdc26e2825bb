"""Failed writes as one sentence: a full disk, missing permissions, a full database."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

import pytest

from p2prl.disk_full import write_error

FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("error", [FULL, OSError(errno.EDQUOT, "Disk quota exceeded"), ValueError("os error 28")])
def test_a_full_disk_asks_for_space(error: Exception) -> None:
    told = write_error(error, Path("/blobs"), kept="finished work is safe")
    assert str(told).startswith("cannot write /blobs: ")
    assert told.remedy == "Free some space and restart; finished work is safe."


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT])
def test_missing_permissions_ask_for_another_folder(number: int) -> None:
    told = write_error(OSError(number, "no"), "the journal")
    assert "permissions" in told.remedy
    assert "nothing is lost" in told.remedy


def test_a_full_database_and_a_read_only_one_differ(tmp_path: Path) -> None:
    def failure(database: sqlite3.Connection) -> sqlite3.Error:
        with pytest.raises(sqlite3.Error) as caught:
            database.execute("INSERT INTO rows VALUES (zeroblob(1000000))")
        return caught.value

    writer = sqlite3.connect(tmp_path / "rows.db", isolation_level=None)
    writer.execute("CREATE TABLE rows (data BLOB)")
    writer.execute(f"PRAGMA max_page_count = {writer.execute('PRAGMA page_count').fetchone()[0]}")
    reader = sqlite3.connect(f"file:{tmp_path / 'rows.db'}?mode=ro", uri=True, isolation_level=None)
    assert "Free some space" in write_error(failure(writer), "the spool").remedy
    assert "permissions" in write_error(failure(reader), "the spool").remedy
    for database in (writer, reader):
        database.close()


def test_a_file_in_the_way_is_no_full_disk() -> None:
    assert "another folder" in write_error(OSError(errno.EEXIST, "File exists"), Path("/dev/null/x")).remedy
