"""`boxed`: the answer inside the last `\\boxed{}`; `hash`: the answer after the last `####`."""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.tasks.data.packed_rows import Row
from p2prl.tasks.scorers.answer_text import (
    BOX,
    HASH,
    UnusableRowError,
    after_hash,
    answers_equal,
    last_boxed,
    marked_answer,
    right_text,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Marked:
    """Accepts `... \\boxed{1{,}234}` (`boxed`) or `...\\n#### 1,234` (`hash`) for the answer 1234.

    What is marked must be the whole answer: equal as a number within `tolerance`, or, unless both are numbers, equal as
    text without spaces, `\\left`, `\\right`, `\\text{}`, `$` and a final dot. `\\boxed{x=5}` is not 5. Braces must
    balance; after `####` the rest of the line counts. The answer's column may be a worked solution with either mark.
    """

    column: str
    boxed: bool
    tolerance: float = 0.0

    def accepts(self, row: Row, text: str) -> bool:
        """See `Judge.accepts`."""
        right = self._right(row)
        answer = last_boxed(text) if self.boxed else after_hash(text)
        return answer is not None and answer != "" and answers_equal(answer, right, self.tolerance)

    def right_answer(self, row: Row) -> str | None:
        """See `Judge.right_answer`."""
        right = self._right(row)
        return f"{BOX}{right}}}" if self.boxed else f"{HASH} {right}"

    def _right(self, row: Row) -> str:
        right = marked_answer(right_text(row, self.column))
        if not right:
            raise UnusableRowError(f"the column {self.column!r} has nothing after its mark")
        return right
