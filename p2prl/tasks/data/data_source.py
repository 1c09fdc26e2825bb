"""Rows of a researcher's file, whatever its format: JSON lines, parquet, or a directory that `datasets` saved."""

from __future__ import annotations

import difflib
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn, Protocol

from p2prl.errors import ConfigError, MachineError
from p2prl.tasks.scorers.row_sources import GeneratedRows, is_generated

MAX_ROW_BYTES = 8 * 1024 * 1024
"""Longest line. A hundred times the longest prompt that a run can have; more is a file without line ends."""

_MARK = "\ufeff"
"""Byte order mark, which some editors write at the start of a file."""


class JsonLinesSource:
    """A JSON lines file. Blank lines are accepted at its end only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = max(1, path.stat().st_size)
        self._read_bytes = 0
        self._decoder = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_columns)

    @property
    def share_done(self) -> float:
        """Share of the file that has been read, 0..1."""
        return min(1.0, self._read_bytes / self._size)

    def place(self, number: int) -> str:
        """Where row `number` is."""
        return f"{self._path}, line {number + 1}"

    def rows(self) -> Iterator[dict[str, object]]:
        """Each row's columns. `ConfigError` naming the first line that is no JSON object."""
        self._read_bytes, number, blank = 0, 0, False
        with self._path.open("rb") as file:
            while line := file.readline(MAX_ROW_BYTES + 1):
                self._read_bytes += len(line)
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


_PARQUET_MAGIC = b"PAR1"
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip", b"BZh": "bzip2"}
_PEEKED_BYTES = 64


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


def open_source(path: Path) -> DataSource:
    """The rows of a file, saved directory or library. `ConfigError` when there is none, or it has another format.

    A source such as `reasoning-gym:NAME?size=2000` stands in place of a path, and is opened as such.
    """
    if is_generated(str(path)):
        return GeneratedRows(str(path))
    if not path.exists():
        if path.is_symlink():
            raise ConfigError(f"{path} is a link to a file that is not there", remedy="Give the file itself.")
        raise ConfigError(f"there is no file {path}", remedy=_similar(path))
    if path.is_dir():
        from p2prl.tasks.data.arrow_files import SavedDatasetSource

        return SavedDatasetSource(path)
    if not path.is_file():
        raise ConfigError(
            f"{path} is a pipe or a device, and rows are read twice", remedy="Save the rows to a file, and give that."
        )
    try:
        with path.open("rb") as file:
            head = file.read(_PEEKED_BYTES)
    except OSError as error:
        raise MachineError(f"cannot read {path}: {error.strerror}", remedy="Check its permissions.") from error
    if not head.strip():
        raise ConfigError(f"{path} is empty", remedy="Give a file with one row a line.")
    if head.startswith(_PARQUET_MAGIC):
        from p2prl.tasks.data.arrow_files import ParquetSource

        return ParquetSource(path)
    for magic, name in _COMPRESSED.items():
        if head.startswith(magic):
            raise ConfigError(f"{path} is compressed with {name}", remedy="Unpack it first.")
    if head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
        raise ConfigError(
            f"{path} is one JSON array, not one JSON object a line",
            remedy=f"Convert it: jq -c '.[]' {shlex.quote(str(path))} > {shlex.quote(f'{path.stem}-lines.jsonl')}",
        )
    if path.suffix.lower() == ".csv":
        program = "import csv, json, sys; [print(json.dumps(row)) for row in csv.DictReader(sys.stdin)]"
        source, target = shlex.quote(str(path)), shlex.quote(f"{path.stem}-lines.jsonl")
        raise ConfigError(
            f"{path} is CSV, not one JSON object a line",
            remedy=f"Convert it: python3 -c {shlex.quote(program)} < {source} > {target}",
        )
    return JsonLinesSource(path)


def _similar(path: Path) -> str:
    """A remedy that names the file which the user may have meant."""
    try:
        kinds = {path.suffix, ".jsonl", ".json", ".parquet", ""}
        names = {entry.stem: entry.name for entry in path.parent.iterdir() if entry.suffix in kinds}
    except OSError:
        return "Check the path."
    close = difflib.get_close_matches(path.stem, names, n=1)
    return f"Did you mean {path.with_name(names[close[0]])}?" if close else "Check the path."
