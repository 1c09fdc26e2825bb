"""Packed prompts of a data set: the token ids of each row, little-endian uint32, in a packed file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from p2prl.errors import IntegrityError
from p2prl.protocol import limits
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
