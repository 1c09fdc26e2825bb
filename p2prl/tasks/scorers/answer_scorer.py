"""The interface of built-in scorers, and their common frame: where the answer may stand and what truncation means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from p2prl.tasks.data.packed_rows import Row
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
