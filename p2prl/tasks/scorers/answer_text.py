"""Find and compare answers in text: after a mark, inside `\\boxed{}`, as numbers or as normalised text. Linear time."""

from __future__ import annotations

import re

from p2prl.tasks.data.packed_rows import Row
from p2prl.tasks.scorers.numbers import numbers_equal, whole_number

MAX_ANSWER_CHARS = 65_536
"""Longest right answer that is compared."""

MAX_PLAIN_CHARS = 200
"""Longest right answer without a mark: a longer text, or one of several lines, is a worked solution."""

BOX = "\\boxed{"
HASH = "####"

_LATEX_SPACE = re.compile(r"\\[,;:! ]|\{,\}|\\(?:left|right)(?![A-Za-z])")
_THOUSANDS = re.compile(r"(?<=[0-9])(?:\{,\}|,\\!|\\[,;:! ])(?=[0-9]{3}(?![0-9]))")
_TEXT_MACRO = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\{([^{}]*)\}")
_NO_NUMBER_SPACE = re.compile(r"(?<![0-9])(?<![0-9]\.) | (?!\.?[0-9])")
"""A space that does not stand between two numbers."""
_UNREAD_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])")


class UnusableRowError(ValueError):
    """A row whose answer a scorer cannot use. The message says what the column must hold."""


def right_text(row: Row, column: str) -> str:
    """The right answer of a row as text. `UnusableRowError` when the column is missing or holds no text or number."""
    value = row.get(column)
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        found = "is missing" if value is None else f"holds {type(value).__name__}"
        raise UnusableRowError(f"the column {column!r} {found}; it must hold a text or a number")
    text = str(value)
    if not text.strip() or len(text) > MAX_ANSWER_CHARS:
        raise UnusableRowError(f"the column {column!r} is empty or longer than {MAX_ANSWER_CHARS} characters")
    return text


def marked_answer(text: str) -> str:
    """The answer in a worked solution: at whichever of `####` and a closed `\\boxed{}` stands last, else all of it."""
    boxed = last_boxed(text)
    if boxed is not None and text.rfind(BOX) > text.rfind(HASH):
        return boxed
    return after_hash(text) or "" if HASH in text else text


def own_answer(row: Row, column: str) -> str:
    """The answer of a row as text: the marked one, or all of a plain text.

    A text is plain when it has one line of at most `MAX_PLAIN_CHARS` characters, and no `\\boxed` that cannot be read.
    `UnusableRowError` for a longer text without a mark, and for a mark with nothing after it.
    """
    text = right_text(row, column)
    answer = marked_answer(text).strip()
    if not answer:
        raise UnusableRowError(f"the column {column!r} has nothing after its mark")
    is_marked = HASH in text or last_boxed(text) is not None
    if not is_marked and (len(answer) > MAX_PLAIN_CHARS or "\n" in answer or _UNREAD_BOX.search(answer)):
        raise UnusableRowError(
            f"the column {column!r} is a worked text whose answer stands neither after {HASH} nor in {BOX}}}:"
            f" {answer[:60]!r}; mark it, or name a column of plain answers"
        )
    return answer


def after_hash(text: str) -> str | None:
    """The rest of the line after the last `####`; None without the mark."""
    _, mark, rest = text.rpartition(HASH)
    return rest.strip().partition("\n")[0].strip() if mark else None


def last_boxed(text: str) -> str | None:
    """The content of the last `\\boxed{...}` with balanced braces; None when there is none, or it is never closed.

    `\\{` and `\\}` are characters, not braces.
    """
    start = text.rfind(BOX)
    if start < 0:
        return None
    depth, escaped = 1, False
    for place in range(start + len(BOX), len(text)):
        character = text[place]
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return text[start + len(BOX) : place]
    return None


def after_last(text: str, mark: str) -> str | None:
    """The text after the last occurrence of a mark; all of it for an empty mark; None when it does not occur."""
    _, found, rest = text.rpartition(mark) if mark else ("", "all", text)
    return rest if found else None


def same_text(text: str, *, ignore_case: bool = False) -> str:
    """A text with its runs of white space made one space, none at the ends."""
    joined = " ".join(text.split())
    return joined.casefold() if ignore_case else joined


def plain_thousands(text: str) -> str:
    """A text whose thousands are separated by commas alone, where LaTeX has `1{,}234`, `1,\\!234` or `1\\,234`."""
    return _THOUSANDS.sub(",", text)


def plain_words(text: str) -> str:
    """A LaTeX text with `\\text{}` and its kin unwrapped, and its spaces plain."""
    spaced = _LATEX_SPACE.sub(lambda match: "," if match[0] == "{,}" else " ", plain_thousands(text))
    return _TEXT_MACRO.sub(r"\1", spaced)


def plain_latex(text: str) -> str:
    """A LaTeX answer without what does not change it: `\\left`, `\\text{}`, dollar signs, a final dot, and spaces.

    One space stays between two numbers, so that `2 1/2` is not `21/2`.
    """
    joined = " ".join(plain_words(text).split())
    return _NO_NUMBER_SPACE.sub("", joined).strip("$ ").rstrip(".")


def answers_equal(answer: str, right: str, tolerance: float = 0.0) -> bool:
    """Whether two answers are equal numbers, or, unless both are numbers, equal as `plain_latex`."""
    plain, plain_right = plain_latex(answer), plain_latex(right)
    numbers = whole_number(plain), whole_number(plain_right)
    if numbers[0] is not None and numbers[1] is not None:
        return numbers_equal(numbers[0], numbers[1], tolerance)
    return plain == plain_right
