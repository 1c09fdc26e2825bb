"""Find and compare answers in text: after a mark, inside `\\boxed{}`, as numbers or as normalised text. Linear time."""

from __future__ import annotations

import re
from fractions import Fraction

from p2prl.tasks.data.packed_data import Row
from p2prl.tasks.scorers.numbers import numbers_equal, whole_number

MAX_ANSWER_CHARS = 65_536
"""Longest right answer that is compared."""

MAX_PLAIN_CHARS = 200
"""Longest right answer without a mark: a longer text, or one of several lines, is a worked solution."""

BOX = "\\boxed{"
HASH = "####"

_LATEX_SPACE = re.compile(r"\\[,;:! ]|\{,\}|\\(?:left|right)(?![A-Za-z])")
_THOUSANDS = re.compile("(?<=[0-9])(?:\\{,\\}|,\\\\!|\\\\[,;:! ]|[\u00a0\u2009\u202f])(?=[0-9]{3}(?![0-9]))")
_BARE_FRACTION = re.compile(r"(\\[dt]?frac) ?([0-9])([0-9])")
_STYLED = re.compile(r"\\[dtc](?=frac(?![A-Za-z]))")
"""Fractions of another size."""
_BARE_TOP = re.compile(r"\\frac ?([0-9])")
_BARE_BOTTOM = re.compile(r"(\\frac\{(?:[^{}]|\{[^{}]*\})*\}) ?([0-9A-Za-z])")
_BARE_ROOT = re.compile(r"\\sqrt ?([0-9])")
"""Arguments of one character without braces: `\\frac12`, `\\frac{x}2`, `\\sqrt2`."""
_DEGREES = re.compile(r"\^ ?(?:\{ ?\\circ ?\}|\\circ(?![A-Za-z]))")
_ONE_RAISED = re.compile(r"([\^_])\{([0-9A-Za-z])\}")
_COMMA_SPACE = re.compile(r"[0-9], (?=[0-9]{3}(?![0-9]))")
"""What separates two values, not thousands."""
_TEXT_MACRO = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\{([^{}]*)\}")
_NO_NUMBER_SPACE = re.compile(r"(?<![0-9])(?<![0-9]\.) | (?!\.?[0-9])")
"""A space that does not stand between two numbers."""
_UNREAD_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])")


class UnusableRowError(ValueError):
    """A row whose answer a scorer cannot use. The message says what the column must hold."""


def right_text(row: Row, column: str) -> str:
    """The right answer of a row as text. `UnusableRowError` when the column is missing or holds no text or number.

    A whole number is written as one: tables turn 7 into 7.0 where a row of the column is empty.
    """
    value = row.get(column)
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        found = "is missing" if value is None else f"holds {type(value).__name__}"
        raise UnusableRowError(f"the column {column!r} {found}; it must hold a text or a number")
    text = f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value)
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


def plain_numbers(text: str) -> str:
    """A text whose thousands are separated by commas alone, and whose fractions have braces.

    LaTeX has `1{,}234`, `1,\\!234`, `1\\,234` and `\\frac12`; models write no-break and thin spaces too.
    """
    return _BARE_FRACTION.sub(r"\1{\2}{\3}", _THOUSANDS.sub(",", text))


def plain_words(text: str) -> str:
    """A LaTeX text with `\\text{}` and its kin unwrapped, and its spaces plain."""
    spaced = _LATEX_SPACE.sub(lambda match: "," if match[0] == "{,}" else " ", plain_numbers(text))
    return _TEXT_MACRO.sub(r"\1", spaced)


def plain_latex(text: str) -> str:
    """A LaTeX answer without what does not change it: `\\left`, `\\text{}`, dollar signs, a final dot, and spaces.

    One space stays between two numbers, so that `2 1/2` is not `21/2`. `\\dfrac12` is `\\frac{1}{2}`, `\\sqrt2` is
    `\\sqrt{2}`, `x^{2}` is `x^2`, `^\\circ` is `°`.
    """
    return _without_spaces(_one_form(text))


def answer_number(text: str) -> Fraction | None:
    """The number that a LaTeX answer is. None for anything else, such as `2, 100`: two values."""
    joined = _one_form(text)
    return None if _COMMA_SPACE.search(joined) else whole_number(_without_spaces(joined))


def answers_equal(answer: str, right: str, tolerance: float = 0.0) -> bool:
    """Whether two answers are equal numbers, or, unless both are numbers, equal as `plain_latex`."""
    number, right_number = answer_number(answer), answer_number(right)
    if number is not None and right_number is not None:
        return numbers_equal(number, right_number, tolerance)
    return number is right_number and plain_latex(answer) == plain_latex(right)


def _one_form(text: str) -> str:
    """A LaTeX text with one form for what has several, and its spaces plain."""
    fractions = _BARE_TOP.sub(r"\\frac{\1}", _STYLED.sub(r"\\", plain_words(text)))
    braced = _BARE_ROOT.sub(r"\\sqrt{\1}", _BARE_BOTTOM.sub(r"\1{\2}", fractions))
    degrees = _DEGREES.sub("°", braced.replace("\\$", "").replace("\\%", "%"))
    return " ".join(_ONE_RAISED.sub(r"\1\2", degrees).split())


def _without_spaces(joined: str) -> str:
    return _NO_NUMBER_SPACE.sub("", joined).strip("$ ").rstrip(".")
