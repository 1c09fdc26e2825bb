"""Files replaced in one step, and failed writes as one sentence: a full disk, permissions, a full database."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

import pytest

from p2prl.disk_full import replace_file, write_error

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


@pytest.mark.parametrize("private", [False, True])
def test_a_file_is_replaced_whole(tmp_path: Path, private: bool) -> None:
    path = tmp_path / "made" / "limits.json"
    replace_file(path, b"first", private=private)
    with path.open("rb") as reader:
        replace_file(path, b"second", private=private)
        assert reader.read() == b"first", "whoever has the file open goes on reading the old one"
    assert path.read_bytes() == b"second"
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_private_file_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "home" / "limits.json"
    replace_file(path, b"{}", private=True)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.parametrize("private", [False, True])
def test_a_refused_replacement_leaves_nothing_beside(tmp_path: Path, private: bool) -> None:
    path = tmp_path / "taken"
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        replace_file(path, b"data", private=private)
    assert list(tmp_path.iterdir()) == [path]
    assert list(path.iterdir()) == []
