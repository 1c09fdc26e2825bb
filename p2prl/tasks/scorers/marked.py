"""`boxed`: the answer inside the last `\\boxed{}`; `hash`: the answer after the last `####`."""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.tasks.data.packed_rows import Row
from p2prl.tasks.scorers.answer_text import (
    BOX,
    HASH,
    after_hash,
    answers_equal,
    last_boxed,
    own_answer,
)


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
