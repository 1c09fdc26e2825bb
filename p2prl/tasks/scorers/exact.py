"""`exact`: the whole text equals the answer; `contains`: the answer stands in the text."""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.tasks.data.packed_rows import Row
from p2prl.tasks.scorers.answer_text import right_text, same_text


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
