"""`choice`: the letter of the right option, A to J, in the usual forms."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from p2prl.tasks.data.packed_data import Row
from p2prl.tasks.scorers.answer_text import UnusableRowError, last_boxed, plain_latex

LETTERS = "ABCDEFGHIJ"
"""Options of a question: MMLU-Pro has ten."""

OPTION_COLUMNS = ("choices", "options")
"""Usual names of the column of a question's options: MMLU and ARC; MMLU-Pro."""

_LETTER = re.compile(r"\(?([A-Ja-j])[).:]?")
_STATED = re.compile(
    r"\b(?i:answer|option|choice)(?:\s{1,3}is)?\*{0,3}\s{0,3}[:=>]?\*{0,3}\s{0,3}"
    r"[*(\[{$\"“]{0,3}(?:\\(?:text|textbf|mathrm|mathbf)\{)?\(?"
    r"([A-HJ](?![A-Za-z0-9'’])|[a-jI](?![A-Za-z0-9'’]|\s{1,3}[A-Za-z]))"  # `the answer is a prime` names no option
)
_BRACKETED = re.compile(r"[(\[]([A-J])[)\]]")
_OPTION_LINE = re.compile(r"^[ \t]{0,3}[*(]*([A-J])[).:*]+\s", re.MULTILINE)
_WRAPPING = " \t\r\n*_`$\"'."


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Accepts, for the answer B, what names B last, by the first of these rules that finds a letter:

    `\\boxed{B}`; `Answer: B`, `**Answer:** B`, `the answer is (b)`, `<answer>B</answer>`, `option B`; `(B)` or `[B]`
    in capitals; a last line that is only `B`, `b`, `B.`, `B)` or `**B**`; a line that begins with a capital as an
    option does, `B. Paris`, `B) Paris`, `(B): Paris` or `**B.** Paris`. The answer's column holds a letter
    (`B`, `(B)`, `b.`) or the option's number counted from 0, as in MMLU.
    """

    column: str

    def accepts(self, row: Row, text: str) -> bool:
        return stated_choice(text) == self._right(row)

    def right_answer(self, row: Row) -> str | None:
        if column := _unseen_options(row):
            raise UnusableRowError(
                f"the column {column!r} holds options that the prompt does not show; write them into it, as lines like"
                " `A. Paris`"
            )
        return f"Answer: {self._right(row)}"

    def _right(self, row: Row) -> str:
        value = row.get(self.column)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(LETTERS):
            return LETTERS[value]
        letter = _lone_letter(value) if isinstance(value, str) else None
        if letter is None:
            raise UnusableRowError(
                f"the column {self.column!r} holds {str(value)[:60]!r};"
                " it must hold a letter A..J, or a number 0..9 that is not written as text"
            )
        return letter


def _unseen_options(row: Row) -> str:
    """The column of options of which the prompt lacks one; empty if there is none."""
    prompt = " ".join(str(row.get("prompt", "")).split())
    for column in OPTION_COLUMNS:
        found: object = row.get(column)
        options: object = found.get("text") if isinstance(found, Mapping) else found  # ARC: texts beside labels
        texts = options if isinstance(options, Sequence) and not isinstance(options, str) else ()
        if any(" ".join(str(text).split()) not in prompt for text in texts):
            return column
    return ""


def stated_choice(text: str) -> str | None:
    """The letter that a text chooses, as a capital; None when it chooses none."""
    boxed = last_boxed(text)
    if boxed is not None and (letter := _lone_letter(plain_latex(boxed))):
        return letter
    for pattern in (_STATED, _BRACKETED):
        if found := deque(pattern.finditer(text), maxlen=1):
            return str(found[0][1]).upper()
    if letter := _lone_letter(text.strip().rpartition("\n")[2]):
        return letter
    found = deque(_OPTION_LINE.finditer(text), maxlen=1)
    return str(found[0][1]) if found else None


def _lone_letter(text: str) -> str | None:
    match = _LETTER.fullmatch(text.strip(_WRAPPING))
    return match[1].upper() if match else None
