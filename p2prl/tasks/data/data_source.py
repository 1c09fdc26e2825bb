"""Rows of a researcher's file, whatever its format: JSON lines, parquet, or a directory that `datasets` saved."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from p2prl.errors import ConfigError, MachineError
from p2prl.tasks.scorers.row_sources import GeneratedRows, is_generated

_PARQUET_MAGIC = b"PAR1"
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip", b"BZh": "bzip2"}
_PEEKED_BYTES = 64


class DataSource(Protocol):
    """A file of rows, read from the start in bounded memory."""

    @property
    def share_done(self) -> float:
        """Share of the file that has been read, 0..1."""
        ...

    def rows(self) -> Iterator[dict[str, Any]]:
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
    from p2prl.tasks.data.json_lines import JsonLinesSource

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
