"""Judges of an answer's text: the whole text, a part of it, boxed, behind a mark, or its last number."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from p2prl.tasks.data.packed_data import Row
from p2prl.tasks.scorers.answer_text import (
    BOX,
    HASH,
    UnusableRowError,
    after_hash,
    answers_equal,
    last_boxed,
    marked_answer,
    own_answer,
    plain_numbers,
    plain_words,
    right_text,
    same_text,
)
from p2prl.tasks.scorers.numbers import last_number, number_of, numbers_equal, only_number


@dataclass(frozen=True, kw_only=True, slots=True)
class Exact:
    """Accepts ` Paris\\n` for the answer `Paris`: runs of white space are one space, none at the ends.

    Refuses `Paris.` and `It is Paris`, and `paris` unless `ignore_case`.
    """

    column: str
    ignore_case: bool = False

    def accepts(self, row: Row, text: str) -> bool:
        right = same_text(right_text(row, self.column), ignore_case=self.ignore_case)
        return same_text(text, ignore_case=self.ignore_case) == right

    def right_answer(self, row: Row) -> str | None:
        return right_text(row, self.column)


@dataclass(frozen=True, kw_only=True, slots=True)
class Contains:
    """Accepts `The capital is Paris.` for the answer `Paris`; with `where` only at the text's `start` or `end`.

    White space and case as in `exact`. The answer need not be a word of its own: `Parisian` contains `Paris`.
    """

    column: str
    ignore_case: bool = False
    where: str = "anywhere"

    def accepts(self, row: Row, text: str) -> bool:
        right = same_text(right_text(row, self.column), ignore_case=self.ignore_case)
        given = same_text(text, ignore_case=self.ignore_case)
        if self.where == "start":
            return given.startswith(right)
        return given.endswith(right) if self.where == "end" else right in given

    def right_answer(self, row: Row) -> str | None:
        return right_text(row, self.column)


@dataclass(frozen=True, kw_only=True, slots=True)
class Marked:
    """Accepts `... \\boxed{1{,}234}` (`boxed`) or `...\\n#### 1,234` (`hash`) for the answer 1234.

    What is marked must be the whole answer: equal as a number within `tolerance`, or, unless both are numbers, equal as
    text without `\\left`, `\\right`, `\\text{}`, `$`, a final dot, and spaces but between two numbers. `\\boxed{x=5}`
    is not 5. Braces must balance; after `####` the rest of the line counts. The answer's column holds a short answer,
    or a worked solution with either mark, of which the last counts.
    """

    column: str
    boxed: bool
    tolerance: float = 0.0

    def accepts(self, row: Row, text: str) -> bool:
        right = own_answer(row, self.column)
        answer = last_boxed(text) if self.boxed else after_hash(text)
        return answer is not None and answer != "" and answers_equal(answer, right, self.tolerance)

    def right_answer(self, row: Row) -> str | None:
        right = own_answer(row, self.column)
        return f"{BOX}{right}}}" if self.boxed else f"{HASH} {right}"


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
