"""Weighted sum of a data set's scorers, finite and within ±100."""

from __future__ import annotations

import math
from dataclasses import dataclass

from p2prl.tasks.data.packed_rows import Row
from p2prl.tasks.row_scorer import RowScorer
from p2prl.tasks.scorers.spec import MAX_VALUE


class ScorerValueError(ValueError):
    """A scorer returned something that cannot be a reward."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Weighted:
    """One scorer in the sum."""

    name: str
    weight: float
    scorer: RowScorer


@dataclass(frozen=True, kw_only=True, slots=True)
class Composite:
    """The row scorer of a whole spec. Terms are added in the spec's order, so that every machine rounds alike."""

    terms: tuple[Weighted, ...]

    def score(self, row: Row, completion: str, finished: bool) -> float | None:
        """A term without a score adds nothing, and there is none where no term has one.

        `ScorerValueError` when a result or the sum is not finite or outside ±100.
        """
        total, scored = 0.0, False
        for term in self.terms:
            value = term.scorer.score(row, completion, finished)
            if value is not None:
                total += term.weight * _checked(value, f"the scorer {term.name!r} returned")
                scored = True
        return _checked(total, "the weighted sum is") if scored else None


def _checked(value: float, what: str) -> float:
    if not math.isfinite(value) or abs(value) > MAX_VALUE:
        raise ScorerValueError(f"{what} {value!r}; it must be a number from -{MAX_VALUE:g} to {MAX_VALUE:g}")
    return value
