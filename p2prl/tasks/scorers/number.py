"""`number`: the last number of the text equals the answer."""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.tasks.data.packed_rows import Row
from p2prl.tasks.scorers.answer_text import UnusableRowError, marked_answer
from p2prl.tasks.scorers.numbers import last_number, number_of, numbers_equal


@dataclass(frozen=True, kw_only=True, slots=True)
class Number:
    """Accepts `so she earns $1,234.50 a day` for the answer 1234.5: any text whose last number is right.

    Numbers as in `numbers`; compared as exact fractions, within `tolerance`. The answer's column holds a number, or a
    text: a worked solution that ends in `#### 42` or `\\boxed{42}`, or any text whose last number is the answer.
    """

    column: str
    tolerance: float = 0.0

    def accepts(self, row: Row, text: str) -> bool:
        """See `Judge.accepts`."""
        value = row.get(self.column)
        right = number_of(marked_answer(value) if isinstance(value, str) else value)
        if right is None:
            raise UnusableRowError(f"the column {self.column!r} holds no number: {str(value)[:60]!r}")
        answer = last_number(text)
        return answer is not None and numbers_equal(answer, right, self.tolerance)

    def right_answer(self, row: Row) -> str | None:
        """See `Judge.right_answer`."""
        value = row.get(self.column)
        text = marked_answer(value) if isinstance(value, str) else str(value)
        self.accepts(row, text)
        return text
