"""Plan of a data task: its files, columns and scorers, as the options of `p2prl init` name them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from p2prl.tasks.data.prompt_template import PromptTemplate

PROMPTS_FILE = "prompts.packed"
ROWS_FILE = "rows.packed"
HELD_OUT_PROMPTS_FILE = "held_out_prompts.packed"
HELD_OUT_ROWS_FILE = "held_out_rows.packed"
SCORER_FILE = "scorer.py"
"""Files of a data task in `RUN/data/TASK/`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataPlan:
    """One data task of a new run.

    Each choice of the researcher is a field, because none follows from another.
    """

    task: str
    """Its name in the mix, which also names its folder."""
    path: Path
    """The file of rows to train on, a pattern of its shards, or a source that stands in its place."""
    weight: float = 1.0
    """Its weight in the mix."""
    held_out: Path | None = None
    """A file of rows for evaluation only."""
    eval_split: float = 0.0
    """Share of the rows to hold out for evaluation, chosen by their hash; 0 holds out none."""
    prompt_column: str = ""
    """Column of the prompts; empty to find it by its usual names."""
    prompt_template: PromptTemplate | None = None
    """Text that prompts are made of, with columns in it, in place of one column."""
    answer_column: str = ""
    """Column of the answers; empty to find it by its usual names, `none` for no answers."""
    drop_long: bool = False
    """Leave out rows whose prompt does not fit, instead of refusing them."""
    drop_conflicts: bool = False
    """Of rows with one prompt and different answers keep the first, instead of refusing them."""
    most_rows: int | None = None
    """Rows read of each file at most; None for all."""
    scoring: str = ""
    """Scorers and weights: canonical JSON, as `RunManifest` holds it."""
    needed_columns: frozenset[str] = frozenset()
    """Columns that the scorers read, `answer` for the answer's."""
    code: bytes | None = None
    """The researcher's own scorer, one Python file."""
