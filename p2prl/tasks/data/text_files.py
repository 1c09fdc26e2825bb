"""Readers of files of text, packed with gzip or not: JSON lines, and CSV with the columns' names in its first line."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NoReturn

from p2prl.errors import ConfigError

MAX_ROW_BYTES = 8 * 1024 * 1024
"""Longest line. A hundred times the longest prompt that a run can have; more is a file without line ends."""

GZIP_MAGIC = b"\x1f\x8b"

_MARK = "\ufeff"
"""Byte order mark, which some editors write at the start of a file."""


class _TextFile:
    """A file that is read from its start, unpacked as it is read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = max(1, path.stat().st_size)
        self._read_bytes = 0

    @property
    def share_done(self) -> float:
        """Share of the file that has been read, 0..1."""
        return min(1.0, self._read_bytes / self._size)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
        """The file, and its text as bytes. `ConfigError` when what is packed with gzip is damaged."""
        self._read_bytes = 0
        with self._path.open("rb") as file:
            packed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
            file.seek(0)
            try:
                yield file, gzip.GzipFile(fileobj=file) if packed else file  # type: ignore[misc]
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise ConfigError(
                    f"{self._path} is damaged: {str(error)[:200]}", remedy="Download or pack it again."
                ) from error


class JsonLinesSource(_TextFile):
    """A JSON lines file. Blank lines are accepted at its end only."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._decoder = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_columns)

    def place(self, number: int) -> str:
        """Where row `number` is."""
        return f"{self._path}, line {number + 1}"

    def rows(self) -> Iterator[dict[str, object]]:
        """Each row's columns. `ConfigError` naming the first line that is no JSON object."""
        number, blank = 0, False
        with self._opened() as (file, text):
            while line := text.readline(MAX_ROW_BYTES + 1):
                self._read_bytes = self._read_bytes + len(line) if text is file else file.tell()
                if line.isspace():
                    blank = True
                    continue
                if blank:
                    raise self._unreadable(number, "the line is empty", "Remove the empty line.")
                yield self._row(number, line)
                number += 1

    def _row(self, number: int, line: bytes) -> dict[str, object]:
        if len(line) > MAX_ROW_BYTES:
            raise self._unreadable(number, f"the line has more than {MAX_ROW_BYTES:,} bytes", "Write one row a line.")
        try:
            text = line.decode().rstrip("\r\n")  # past the end of the line, columns would count from 1 again
        except UnicodeDecodeError as error:
            raise self._unreadable(
                number, f"byte {error.start + 1} of the line is not UTF-8", "Save the file as UTF-8."
            ) from error
        try:
            row = self._decoder.decode(text.removeprefix(_MARK) if number == 0 else text)
        except json.JSONDecodeError as error:
            seen = f"{error.msg[0].lower()}{error.msg[1:]}".removesuffix(" at")
            reason = f"not JSON: {seen} at column {error.colno}"
            raise self._unreadable(number, reason, "Write one JSON object a line.") from error
        except RecursionError as error:
            raise self._unreadable(number, "the JSON is nested too deep", "Flatten the row.") from error
        except _NotJsonError as error:
            raise self._unreadable(number, str(error), error.remedy) from error
        except ValueError as error:  # of int()
            reason = f"a number has more than {sys.get_int_max_str_digits():,} digits"
            raise self._unreadable(number, reason, "Write it as a text.") from error
        if not isinstance(row, dict):
            raise self._unreadable(number, "not a JSON object", 'Write rows as {"prompt": …, "answer": …}.')
        return row

    def _unreadable(self, number: int, reason: str, remedy: str) -> ConfigError:
        return ConfigError(f"{self.place(number)}: {reason}", remedy=remedy)


class CsvSource(_TextFile):
    """Values separated by commas (RFC 4180), or by tabs in a file `.tsv`. Every value is a text."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._separator = "\t" if ".tsv" in path.suffixes[-2:] else ","

    def place(self, number: int) -> str:
        """Where row `number` is. A value may have line ends, so lines do not count rows."""
        return f"{self._path}, row {number + 1}"

    def rows(self) -> Iterator[dict[str, object]]:
        """Each row's columns. `ConfigError` naming the first row that has not a value for each column."""
        csv.field_size_limit(MAX_ROW_BYTES)
        with self._opened() as (file, data), io.TextIOWrapper(data, encoding="utf-8-sig", newline="") as text:
            reader = csv.reader(text, delimiter=self._separator, strict=True)
            names: list[str] = []
            number = 0
            try:
                for values in reader:
                    if not values:
                        continue  # an empty line
                    if not names:
                        names = self._names(values)
                        continue
                    if len(values) != len(names):
                        raise self._unreadable(number, f"{len(values)} values for {len(names)} columns")
                    yield dict(zip(names, values, strict=True))
                    number += 1
                    self._read_bytes = file.tell()
            except csv.Error as error:
                raise self._unreadable(number, f"not CSV: {error}") from error
            except UnicodeDecodeError as error:
                raise ConfigError(f"{self.place(number)}: not UTF-8", remedy="Save the file as UTF-8.") from error
        self._read_bytes = self._size

    def _names(self, values: list[str]) -> list[str]:
        twice = next((name for name in values if values.count(name) > 1), None)
        if twice is not None or "" in values:
            what = f"{json.dumps(str(twice)[:40])} stands twice in" if twice else "a column has no name in"
            raise ConfigError(f"{self._path}: {what} the first line", remedy="Give each column a name of its own.")
        return values

    def _unreadable(self, number: int, reason: str) -> ConfigError:
        return ConfigError(
            f"{self.place(number)}: {reason}",
            remedy='Put values with commas or line ends in quotes: "a, b".',
        )


class _NotJsonError(ValueError):
    """What Python's decoder reads, and other programs do not, or differently."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.remedy = remedy


def _refuse_constant(name: str) -> NoReturn:
    raise _NotJsonError(f"{name} is no JSON number", "Remove the row, or give it a number.")


def _columns(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object's values by name, of which none may come twice."""
    columns = dict(pairs)
    if len(columns) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in columns if names.count(name) > 1)
        raise _NotJsonError(f"{json.dumps(twice[:40])} stands twice in one object", "Keep the value that is meant.")
    return columns
