"""Regular expressions by which a run's tokenizer may split a text: a grammar without nested repetition.

The library matches with backtracking, so that `(a+)+$` tries without end. Here a group is there or not and never
repeats, nothing refers back, and an alternative repeats without bound a few times only: the time is a polynomial of a
small degree. The patterns of GPT-2, Llama 3, Qwen, DeepSeek, o200k and others all fit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_PATTERN_CHARACTERS = 2_048
"""Characters of a pattern; the longest of a known tokenizer has about 500."""

MAX_REPETITIONS = 4
"""Repetitions without a bound in one alternative, groups included. Known patterns have up to three."""

MAX_COUNT = 64
"""Largest number in `{…}`; real ones split digits into threes."""

MAX_DEPTH = 3
"""Groups or classes in each other."""

_ESCAPE = re.compile(
    r"\\(?:[sSdDwWnrtfv]|[pP]\{\^?[A-Za-z_]{1,32}\}|x[0-9a-fA-F]{2}|x\{[0-9a-fA-F]{1,6}\}|u[0-9a-fA-F]{4}|[^\w\s])"
)
_ANCHORS = ("\\b", "\\B", "\\A", "\\z", "\\Z", "^", "$")
_GROUP = re.compile(r"\((?:\?(?:[imx]{0,3}:|[=!]))?")
_QUANTIFIER = re.compile(r"(?:[?*+]|\{(\d{1,3})?(,)?(\d{1,3})?\})[?+]?")


class PatternError(Exception):
    """A pattern is outside the grammar; the text says where."""


@dataclass(slots=True)
class _Reader:
    """A position in a pattern."""

    text: str
    at: int = 0

    def peek(self) -> str:
        """The next character; empty at the end."""
        return self.text[self.at : self.at + 1]

    def skip(self, expression: re.Pattern[str]) -> re.Match[str] | None:
        """Go past a match at this position."""
        if found := expression.match(self.text, self.at):
            self.at = found.end()
        return found

    def error(self, problem: str) -> PatternError:
        """An error that names this position."""
        return PatternError(f"{problem} at character {self.at}")


def check_pattern(pattern: str) -> None:
    """Raise `PatternError` unless the pattern is in the grammar."""
    if not 0 < len(pattern) <= MAX_PATTERN_CHARACTERS:
        raise PatternError(f"a pattern of {len(pattern)} characters")
    reader = _Reader(pattern)
    _alternatives(reader, depth=0)
    if reader.peek():
        raise reader.error("a bracket that nothing opened")


def _alternatives(reader: _Reader, *, depth: int) -> int:
    """Read alternatives up to a closing bracket or the end; return the most repetitions without bound of one."""
    if depth > MAX_DEPTH:
        raise reader.error("groups are nested too deep")
    most = 0
    while True:
        repeated = _sequence(reader, depth=depth)
        if repeated > MAX_REPETITIONS:
            raise reader.error(f"more than {MAX_REPETITIONS} repetitions without a bound")
        most = max(most, repeated)
        if reader.peek() != "|":
            return most
        reader.at += 1


def _sequence(reader: _Reader, *, depth: int) -> int:
    """Read one alternative; return its repetitions without bound."""
    start, repeated = reader.at, 0
    while (character := reader.peek()) and character not in "|)":
        is_group = character == "("
        repeated += _atom(reader, depth=depth) + _quantifier(reader, of_group=is_group)
    if reader.at == start:
        raise reader.error("an alternative that matches nothing")
    return repeated


def _atom(reader: _Reader, *, depth: int) -> int:
    """Read one atom; return the repetitions without bound inside."""
    character = reader.peek()
    if anchor := next((anchor for anchor in _ANCHORS if reader.text.startswith(anchor, reader.at)), None):
        reader.at += len(anchor)
        return 0
    if character == "\\":
        if not reader.skip(_ESCAPE):
            raise reader.error("an escape that is not allowed")
        return 0
    if character == "[":
        _class(reader, depth=0)
        return 0
    if character == "(":
        opening = reader.skip(_GROUP)
        if opening is None or reader.peek() in ("?", "*"):
            raise reader.error("a group of a kind that is not allowed")
        inner = _alternatives(reader, depth=depth + 1)
        if reader.peek() != ")":
            raise reader.error("a group without an end")
        reader.at += 1
        return inner
    if character in "?*+{":
        raise reader.error("a repetition of nothing")
    reader.at += 1
    return 0


def _quantifier(reader: _Reader, *, of_group: bool) -> int:
    """Read how often the atom before may repeat; return 1 if without bound."""
    before = reader.at
    found = reader.skip(_QUANTIFIER)
    if found is None:
        if reader.peek() in ("?", "*", "+", "{"):
            raise reader.error("a repetition that is not allowed")
        return 0
    if reader.text[before] == "{":
        low, comma, high = found.groups()
        if low is None and high is None:
            raise reader.error("a repetition without numbers")
        if max(int(low or 0), int(high or 0)) > MAX_COUNT:
            raise reader.error(f"a repetition of more than {MAX_COUNT}")
        unbounded = comma is not None and high is None
        at_most_once = not unbounded and int(high or low or 0) <= 1
    else:
        unbounded = reader.text[before] in "*+"
        at_most_once = reader.text[before] == "?"
    if of_group and not at_most_once:
        raise reader.error("a group that repeats")
    if reader.peek() and reader.peek() in "?*+{":
        raise reader.error("a repetition of a repetition")
    return int(unbounded)


def _class(reader: _Reader, *, depth: int) -> None:
    """Read a character class, nested ones and intersections included."""
    if depth > MAX_DEPTH:
        raise reader.error("classes are nested too deep")
    reader.at += 1
    if reader.peek() == "^":
        reader.at += 1
    start = reader.at
    while (character := reader.peek()) != "]" or reader.at == start:
        if not character:
            raise reader.error("a class without an end")
        if character == "[":
            _class(reader, depth=depth + 1)
        elif character == "\\":
            if not reader.skip(_ESCAPE):
                raise reader.error("an escape that is not allowed")
        else:
            reader.at += 1
    reader.at += 1
