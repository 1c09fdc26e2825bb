"""`number`: the last number of the text equals the answer."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from p2prl.tasks.data.packed_rows import Row
from p2prl.tasks.scorers.answer_text import UnusableRowError, marked_answer, plain_numbers, plain_words
from p2prl.tasks.scorers.numbers import last_number, number_of, numbers_equal, only_number


@dataclass(frozen=True, kw_only=True, slots=True)
class Number:
    """Accepts `so she earns $1,234.50 a day` for the answer 1234.5: any text whose last number is right.

    Numbers as in `numbers`; compared as exact fractions, within `tolerance`. The answer's column holds a number, or a
    text with one number: `42`, `about 42`, `12 m^2`, or a worked solution that ends in `#### 42` or `\\boxed{42}`.
    `18 (9+9)` or `3 and 4` could mean several, and is refused.
    """

    column: str
    tolerance: float = 0.0

    def accepts(self, row: Row, text: str) -> bool:
        right = self._right(row)
        answer = last_number(plain_numbers(text))
        return answer is not None and numbers_equal(answer, right, self.tolerance)

    def right_answer(self, row: Row) -> str | None:
        value, right = row.get(self.column), self._right(row)
        text = marked_answer(value) if isinstance(value, str) else str(value)
        return text if last_number(plain_numbers(text)) == right else str(right)

    def _right(self, row: Row) -> Fraction:
        value = row.get(self.column)
        text = marked_answer(value) if isinstance(value, str) else str(value)
        try:
            right = only_number(plain_words(text)) if isinstance(value, str) else number_of(value)
        except ValueError:
            raise UnusableRowError(
                f"the column {self.column!r} holds several numbers: {text[:60]!r}; it must hold one, with its unit at"
                " most, or mark the answer with #### or \\boxed{}"
            ) from None
        if right is None:
            raise UnusableRowError(f"the column {self.column!r} holds no number: {str(value)[:60]!r}")
        return right
