"""Packed data of a task: its prompts as token ids everywhere, its rows where answers are scored, and their names.

A row has the key `prompt` (text, or a list of chat messages), `rendered` (the text whose tokens are the prompt) and the
data set's other columns under their own names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from p2prl.errors import IntegrityError
from p2prl.protocol import limits
from p2prl.protocol.digests import chunk_digest
from p2prl.protocol.hash_tree import TreeBuilder, bound_top, top_of
from p2prl.protocol.manifests import BlobRef, chunk_bytes_for
from p2prl.tasks.data.packed_file import PackedFile


def prompt_record(token_ids: Sequence[int]) -> bytes:
    """The record of one prompt."""
    return np.asarray(token_ids, dtype="<u4").tobytes()


class PackedPrompts:
    """Prompts of a data set, as a volunteer reads them."""

    def __init__(self, path: Path, *, rows: int | None = None) -> None:
        """`rows` is the number the run's manifest states, if it states one. `IntegrityError` when the file has
        another."""
        self._file = PackedFile(path)
        if rows is not None and len(self._file) != rows:
            raise IntegrityError(f"{path.name} has {len(self._file)} prompts, not the {rows} of the run")

    def __len__(self) -> int:
        return len(self._file)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return self._file.longest // 4

    def token_ids(self, row: int) -> tuple[int, ...]:
        """Token ids of a row's prompt. `IntegrityError` when they are no prompt."""
        record = self._file.record(row)
        if not 0 < len(record) <= 4 * limits.MAX_PROMPT_TOKENS or len(record) % 4:
            raise IntegrityError(f"row {row}: {len(record)} bytes are no prompt")
        return tuple(np.frombuffer(record, dtype="<u4").tolist())


Row = Mapping[str, Any]
"""Columns of a row by name: JSON values."""

MAX_ROW_BYTES = 1024 * 1024
"""A row as JSON. Rows are a researcher's, whose answers and extra columns have no use for more, and each answer that is
scored takes its row to a sandboxed process."""


def row_record(row: Row) -> bytes:
    """The record of one row: UTF-8, sorted keys, no spaces. `ValueError` for NaN and infinity."""
    return json.dumps(row, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


class PackedRows:
    """Rows of a data set, as learner and validators read them."""

    def __init__(self, path: Path, *, rows: int | None = None) -> None:
        """`rows` is the number the run's manifest states, if it states one. `IntegrityError` when the file has
        another."""
        self._file = PackedFile(path)
        if rows is not None and len(self._file) != rows:
            raise IntegrityError(f"{path.name} has {len(self._file)} rows, not the {rows} of the run")

    def __len__(self) -> int:
        return len(self._file)

    def row(self, number: int) -> dict[str, object]:
        """Columns of a row. `IntegrityError` when the record is no JSON object."""
        try:
            row = json.loads(self._file.record(number))
        except (ValueError, RecursionError) as error:
            raise IntegrityError(f"row {number} is not JSON") from error
        if not isinstance(row, dict):
            raise IntegrityError(f"row {number} is not an object")
        return row


def file_blob(path: Path) -> BlobRef:
    """A file as a blob, with a chunk size that depends on its size alone."""
    size = path.stat().st_size
    chunk_bytes = chunk_bytes_for(size)
    with path.open("rb") as file:
        tree = TreeBuilder(chunk_digest(data) for data in iter(lambda: file.read(chunk_bytes), b""))
    return BlobRef(size, chunk_bytes, bound_top(size, chunk_bytes, top_of(tree.nodes)))


@dataclass(frozen=True, slots=True)
class DataSplit:
    """Rows that are used together: those trained on, or those held out."""

    prompts: PackedPrompts
    rows: PackedRows | None = None
    """None on a machine that scores nothing: a volunteer's, and that of a validator without `--run-scorer`."""


@dataclass(frozen=True, slots=True)
class TaskData:
    """The data behind one task of the mix."""

    training: DataSplit
    held_out: DataSplit | None = None
    """Rows for evaluation alone. Only the learner has them."""

    def split(self, *, held_out: bool) -> DataSplit:
        """The rows to use; those trained on when an evaluation finds none held out."""
        return self.held_out if held_out and self.held_out is not None else self.training
