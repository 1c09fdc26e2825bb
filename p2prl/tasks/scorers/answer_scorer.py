"""The interface of built-in scorers, their common frame, and the weighted sum of a data set's scorers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from p2prl.tasks.data.packed_data import Row
from p2prl.tasks.row_scorer import RowScorer
from p2prl.tasks.score_bound import MAX_SCORE
from p2prl.tasks.scorers.answer_text import after_last
from p2prl.tasks.task import MAX_SCORED_CHARS


class Judge(Protocol):
    """Compares one text with one row. Time linear in the text."""

    def accepts(self, row: Row, text: str) -> bool:
        """Whether the text holds the row's right answer. `UnusableRowError` when the row has none."""
        ...

    def right_answer(self, row: Row) -> str | None:
        """A text that `accepts` holds for, which proves that the row can be used; None when none can be made.

        `UnusableRowError` when the row has no right answer.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerScorer:
    """A row scorer that gives 1 where its judge accepts, else 0.

    A completion without an end token, or without the mark, or longer than `MAX_SCORED_CHARS`, scores 0 unread.
    """

    judge: Judge
    after: str = ""
    """Only the text after the last such mark is read."""
    truncated: bool = False
    """Also read completions without an end token."""

    def score(self, row: Row, completion: str, finished: bool) -> float:
        """Raises nothing but `UnusableRowError`."""
        if len(completion) > MAX_SCORED_CHARS or not (finished or self.truncated):
            return 0.0
        text = after_last(completion, self.after)
        return float(text is not None and self.judge.accepts(row, text))

    def right_answer(self, row: Row) -> str | None:
        answer = self.judge.right_answer(row)
        return None if answer is None else self.after + answer


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
        return self.total(self.parts(row, completion, finished))

    def parts(self, row: Row, completion: str, finished: bool) -> tuple[float | None, ...]:
        """What each term adds; None for one without a score. `ScorerValueError` as `score`."""
        parts: list[float | None] = []
        for term in self.terms:
            value = term.scorer.score(row, completion, finished)
            checked = None if value is None else _checked(value, f"the scorer {term.name!r} returned")
            parts.append(None if checked is None else term.weight * checked)
        return tuple(parts)

    def total(self, parts: Sequence[float | None]) -> float | None:
        """The score whose parts these are, in the order of the terms. `ScorerValueError` as `score`."""
        scored = [part for part in parts if part is not None]
        return _checked(sum(scored, 0.0), "the weighted sum is") if scored else None


def _checked(value: float, what: str) -> float:
    if not math.isfinite(value) or abs(value) > MAX_SCORE:
        raise ScorerValueError(f"{what} {value!r}; it must be a number from -{MAX_SCORE:g} to {MAX_SCORE:g}")
    return value
