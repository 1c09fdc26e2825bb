"""The row scorer interface: a number for a completion of a data set's row. Runs in the sandbox only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from p2prl.tasks.data.packed_data import Row


class RowScorer(Protocol):
    """Scores completions of one data set's rows."""

    def score(self, row: Row, completion: str, finished: bool) -> float | None:
        """Score a completion (its text without the stop token); `finished` means that a stop token ended it.

        A finite number, or None for no score. May raise and may hang: the sandbox scores such an answer 0, like one
        without a score, and reports it.
        """
        ...


@runtime_checkable
class SumScorer(RowScorer, Protocol):
    """A row scorer whose score is a sum."""

    def parts(self, row: Row, completion: str, finished: bool) -> tuple[float | None, ...]:
        """What each scorer of the sum adds, weights included; None for one without a score. Raises as `score`."""
        ...

    def total(self, parts: Sequence[float | None]) -> float | None:
        """The score whose parts these are."""
        ...
