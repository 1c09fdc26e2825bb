"""Data of one task as a machine of the run holds it: prompts everywhere, rows only where answers are scored."""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.tasks.data.packed_prompts import PackedPrompts
from p2prl.tasks.data.packed_rows import PackedRows


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
