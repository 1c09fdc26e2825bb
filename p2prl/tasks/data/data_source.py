"""Rows of a researcher's data, whatever its format: files of text or parquet, their shards, saved and hub data sets."""

from __future__ import annotations

import difflib
import gzip
import re
import shlex
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from p2prl.errors import ConfigError, MachineError
from p2prl.tasks.data.hub_data import hub_files, is_hub_data
from p2prl.tasks.data.text_files import GZIP_MAGIC, CsvSource, JsonLinesSource
from p2prl.tasks.scorers.row_sources import GeneratedRows, is_generated

_PARQUET_MAGIC = b"PAR1"
_COMPRESSED = {b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip", b"BZh": "bzip2"}
_PEEKED_BYTES = 64
_TABLES = (".csv", ".tsv")

_DIGITS = re.compile(r"([0-9]+)")


class DataSource(Protocol):
    """A file of rows, read from the start in bounded memory."""

    @property
    def share_done(self) -> float:
        """Share of the file that has been read, 0..1."""
        ...

    def rows(self) -> Iterator[dict[str, object]]:
        """Each row: its columns by name, JSON values. `ConfigError` naming the place of the first unreadable row."""
        ...

    def place(self, number: int) -> str:
        """Where row `number` (from 0) is, for a message: the file and its line."""
        ...


class Shards:
    """Files that are one after the other."""

    def __init__(self, files: Sequence[DataSource]) -> None:
        self._files = files
        self._starts = [0]
        """Number of the first row of each file that has been begun."""

    @property
    def share_done(self) -> float:
        """Share of the files that has been read, 0..1, as if all had the same size."""
        return sum(file.share_done for file in self._files) / len(self._files)

    def rows(self) -> Iterator[dict[str, object]]:
        """The rows of each. `ConfigError` as theirs."""
        self._starts, number = [], 0
        for file in self._files:
            self._starts.append(number)
            for row in file.rows():
                number += 1
                yield row

    def place(self, number: int) -> str:
        """Where row `number` is."""
        shard = max(0, bisect_right(self._starts, number) - 1)
        return self._files[shard].place(number - self._starts[shard])


def open_source(path: Path) -> DataSource:
    """The rows of a file, of files that a pattern names, of a saved directory, a hub or a library.

    `ConfigError` when there are none, or they have another format. A source such as `reasoning-gym:NAME?size=2000`
    stands in place of a path, and is opened as such.
    """
    if is_generated(str(path)):
        return GeneratedRows(str(path))
    files = _present_files(path)
    return _open_file(path) if files == [path] else Shards([_open_file(each) for each in files])


def require_files(path: Path) -> None:
    """Raise `ConfigError` as `open_source` does where a file is missing. Reads no row, and asks no hub or library."""
    if not is_generated(str(path)) and not is_hub_data(str(path)):
        _present_files(path)


def data_files(path: Path) -> list[Path]:
    """The files of a source: one, those that match its pattern (`*`, `?`, `[…]`), 2 before 10, or the hub's.

    `ConfigError` as `hub_files`.
    """
    if is_hub_data(str(path)):
        return list(hub_files(str(path)))
    if path.exists() or not any(sign in str(path) for sign in "*?["):
        return [path]
    root = Path(path.anchor or ".")
    found = [each for each in root.glob(str(path.relative_to(path.anchor))) if each.is_file()]
    return sorted(found, key=lambda each: [int(part) if part.isdigit() else part for part in _DIGITS.split(str(each))])


def _present_files(path: Path) -> list[Path]:
    files = data_files(path)
    if not files:
        raise ConfigError(f"there is no file {path}", remedy="Check the pattern, and the folder that it begins with.")
    for each in files:
        if each.is_symlink() and not each.exists():
            raise ConfigError(f"{each} is a link to a file that is not there", remedy="Give the file itself.")
        if not each.exists():
            raise ConfigError(f"there is no file {each}", remedy=_similar(each))
    return files


def _open_file(path: Path) -> DataSource:
    if path.is_dir():
        from p2prl.tasks.data.arrow_files import SavedDatasetSource

        return SavedDatasetSource(path)
    if not path.is_file():
        raise ConfigError(
            f"{path} is a pipe or a device, and rows are read twice", remedy="Save the rows to a file, and give that."
        )
    head = _head(path)
    if not head.strip():
        raise ConfigError(f"{path} is empty", remedy="Give a file with one row a line.")
    if head.startswith(_PARQUET_MAGIC):
        from p2prl.tasks.data.arrow_files import ParquetSource

        return ParquetSource(path)
    for magic, name in _COMPRESSED.items():
        if head.startswith(magic):
            raise ConfigError(f"{path} is compressed with {name}", remedy="Unpack it first, or pack it with gzip.")
    if any(suffix.lower() in _TABLES for suffix in path.suffixes[-2:]):
        return CsvSource(path)
    if head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
        raise ConfigError(
            f"{path} is one JSON array, not one JSON object a line",
            remedy=f"Convert it: jq -c '.[]' {shlex.quote(str(path))} > {shlex.quote(f'{path.stem}-lines.jsonl')}",
        )
    return JsonLinesSource(path)


def _head(path: Path) -> bytes:
    """The first bytes of a file, unpacked."""
    try:
        with path.open("rb") as file:
            head = file.read(_PEEKED_BYTES)
            if not head.startswith(GZIP_MAGIC):
                return head
            file.seek(0)
            return gzip.GzipFile(fileobj=file).read(_PEEKED_BYTES)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ConfigError(f"{path} is damaged: {str(error)[:200]}", remedy="Download or pack it again.") from error
    except OSError as error:
        raise MachineError(f"cannot read {path}: {error.strerror}", remedy="Check its permissions.") from error


def _similar(path: Path) -> str:
    """A remedy that names the file which the user may have meant."""
    try:
        kinds = {path.suffix, ".jsonl", ".json", ".parquet", ""}
        names = {entry.stem: entry.name for entry in path.parent.iterdir() if entry.suffix in kinds}
    except OSError:
        return "Check the path."
    close = difflib.get_close_matches(path.stem, names, n=1)
    return f"Did you mean {path.with_name(names[close[0]])}?" if close else "Check the path."
