"""Packed rows of a data set as its scorers see them: one canonical JSON object a row, in a packed file.

A row has the key `prompt` (text, or a list of chat messages), `rendered` (the text whose tokens are the prompt) and the
data set's other columns under their own names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from p2prl.errors import IntegrityError
from p2prl.tasks.data.packed_file import PackedFile

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
