"""Readers of parquet files and of directories saved by `datasets`, through pyarrow (extra `data`)."""

from __future__ import annotations

import datetime
import decimal
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2prl.errors import ConfigError, MachineError
from p2prl.installation import install_command

if TYPE_CHECKING:
    import pyarrow

_BATCH_ROWS = 16
"""Rows decoded together. Few, because each may have a megabyte of columns."""


def _pyarrow() -> Any:
    """The library. `ConfigError` naming the extra when it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(
            "parquet files and saved data sets are read with pyarrow, which is not installed",
            remedy=f"{install_command('data')}; or convert the data to JSON lines.",
        ) from error
    return pyarrow


class _ArrowSource(ABC):
    """Rows of Arrow record batches."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._arrow = _pyarrow()
        self.share_done = 0.0
        """Share of the data that has been read, 0..1."""

    def place(self, number: int) -> str:
        """Where row `number` is."""
        return f"{self._path}, row {number} (from 0)"

    def rows(self) -> Iterator[dict[str, object]]:
        """Each row's columns. `ConfigError` naming the first row that has no JSON value."""
        number = 0
        try:
            for batch in self._batches():
                names = batch.schema.names
                if len(set(names)) < len(names):
                    raise ConfigError(f"{self._path} has two columns of one name", remedy="Rename one of them.")
                for index in range(0, batch.num_rows, _BATCH_ROWS):
                    for row in self._decoded(batch.slice(index, _BATCH_ROWS), number):
                        yield self._json_row(row, number)
                        number += 1
        except (self._arrow.ArrowInvalid, self._arrow.ArrowNotImplementedError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise MachineError(f"cannot read {self._path}: {error}", remedy="Check the disk.") from error
            raise ConfigError(f"{self._path} is damaged: {str(error)[:200]}", remedy="Save the data again.") from error

    @abstractmethod
    def _batches(self) -> Iterator[pyarrow.RecordBatch]:
        """The record batches, in order."""

    def _decoded(self, batch: pyarrow.RecordBatch, first: int) -> list[dict[str, object]]:
        """The rows of a batch. Arrow checks no text, so a faulty one is found here."""
        try:
            rows: list[dict[str, object]] = batch.to_pylist()
        except UnicodeDecodeError as error:
            if batch.num_rows > 1:
                return [row for i in range(batch.num_rows) for row in self._decoded(batch.slice(i, 1), first + i)]
            raise ConfigError(f"{self.place(first)}: a text is not UTF-8", remedy="Save the data as UTF-8.") from error
        return rows

    def _json_row(self, row: dict[str, object], number: int) -> dict[str, object]:
        for name, value in row.items():
            try:
                row[name] = _json_value(value)
            except TypeError as error:
                raise ConfigError(
                    f"{self.place(number)}: the column {name!r} holds {error}, which no scorer can read",
                    remedy="Leave the column out, or convert it to text.",
                ) from error
        return row


class ParquetSource(_ArrowSource):
    """A parquet file."""

    def _batches(self) -> Iterator[pyarrow.RecordBatch]:
        with self._arrow.parquet.ParquetFile(self._path, pre_buffer=False) as file:
            total, done = max(1, file.metadata.num_rows), 0
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                yield batch
                done += batch.num_rows
                self.share_done = done / total


class SavedDatasetSource(_ArrowSource):
    """A directory written by `Dataset.save_to_disk` of `datasets`."""

    def __init__(self, path: Path) -> None:
        self._files = _arrow_files(path)
        super().__init__(path)

    def _batches(self) -> Iterator[pyarrow.RecordBatch]:
        total, done = max(1, sum(file.stat().st_size for file in self._files)), 0
        for path in self._files:
            # Read, not memory-mapped: pages of a map count as memory of this process.
            with self._arrow.OSFile(str(path)) as file, self._arrow.ipc.open_stream(file) as stream:
                for batch in stream:
                    yield batch
                    self.share_done = (done + file.tell()) / total
            done += path.stat().st_size


def _arrow_files(path: Path) -> list[Path]:
    """The Arrow files of a saved data set, in order. `ConfigError` when the directory is none."""
    if (path / "dataset_dict.json").is_file():
        splits = _document(path / "dataset_dict.json").get("splits")
        names = [str(name) for name in splits] if isinstance(splits, list) else []
        raise ConfigError(
            f"{path} holds the splits {', '.join(names) or '(none)'}",
            remedy=f"Give one of them: {path / (names[0] if names else 'SPLIT')}",
        )
    if not (path / "state.json").is_file():
        raise ConfigError(
            f"{path} is not a directory saved by `datasets`: it has no state.json",
            remedy="Give a JSON lines file, a parquet file, or a directory from Dataset.save_to_disk.",
        )
    listed = _document(path / "state.json").get("_data_files")
    entries = listed if isinstance(listed, list) else []
    names = [str(entry.get("filename", "")) for entry in entries if isinstance(entry, dict)]
    files = [path / Path(name).name for name in names]
    missing = next((file for file in files if not file.is_file()), None)
    if not files or missing is not None:
        raise ConfigError(f"{missing or path} is missing or holds no rows", remedy="Save the data set again.")
    return files


def _document(path: Path) -> dict[str, object]:
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON", remedy="Save the data set again.") from error
    return document if isinstance(document, dict) else {}


def _json_value(value: object) -> object:
    """A JSON value for a value of Arrow; dates and decimals become text. `TypeError` naming any other kind."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, list):
        return [_json_value(inner) for inner in value]
    if isinstance(value, dict):
        return {str(key): _json_value(inner) for key, inner in value.items()}
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    raise TypeError(type(value).__name__)
