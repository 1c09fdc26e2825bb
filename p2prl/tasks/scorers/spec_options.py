"""Options of each scorer: names, defaults and legal values, in one table that spec and command line read."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass

from p2prl.errors import ConfigError

OptionValue = str | float | bool
"""An option's value: what JSON and the command line can both state."""

MAX_PATTERN_CHARS = 1_000
"""Regular expression of a scorer. RE2 compiles longer ones too, but nobody can read them."""

MAX_SCHEMA_CHARS = 6_000
"""JSON schema inside a spec, which is bounded as a whole (`limits.MAX_SCORING_CHARS`)."""

MAX_MARK_CHARS = 64
"""Names of columns and functions, and marks such as `</think>`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """One option of a scorer."""

    default: OptionValue
    """Its type is the option's type."""
    choices: tuple[str, ...] = ()
    """Legal texts; any text of 1..`max_chars` characters if empty."""
    max_chars: int = MAX_MARK_CHARS
    highest: float = 0.0
    """Largest number; the smallest is 0."""
    identifier: bool = False
    """The text must be a Python name."""
    required: bool = False
    example: str = ""
    """How a user writes it, for the message when it is missing."""
    meaning: str = ""
    """One clause for docs and messages."""


_COLUMN = Option(default="answer", meaning="column of the row that holds the right answer")
_TRUNCATED = Option(default=False, meaning="also score completions that ended at the length limit")
_AFTER = Option(default="", meaning="score only the text after the last occurrence of this mark; 0 without the mark")
_TOLERANCE = Option(default=0.0, highest=1e9, meaning="largest |answer - right| / max(1, |right|)")
_IGNORE_CASE = Option(default=False, meaning="upper and lower case are equal")


def _pattern(scorer: str) -> Option:
    return Option(
        default="",
        max_chars=MAX_PATTERN_CHARS,
        required=True,
        example=f"{scorer}:PATTERN",
        meaning="a regular expression in RE2's syntax; must be the last option",
    )


SCORER_OPTIONS: Mapping[str, Mapping[str, Option]] = {
    "exact": {"column": _COLUMN, "truncated": _TRUNCATED, "after": _AFTER, "ignore_case": _IGNORE_CASE},
    "contains": {
        "column": _COLUMN,
        "truncated": _TRUNCATED,
        "after": _AFTER,
        "ignore_case": _IGNORE_CASE,
        "where": Option(
            default="anywhere", choices=("anywhere", "start", "end"), meaning="where the answer must stand"
        ),
    },
    "number": {"column": _COLUMN, "truncated": _TRUNCATED, "after": _AFTER, "tolerance": _TOLERANCE},
    "boxed": {"column": _COLUMN, "truncated": _TRUNCATED, "tolerance": _TOLERANCE},
    "hash": {"column": _COLUMN, "truncated": _TRUNCATED, "tolerance": _TOLERANCE},
    "choice": {"column": _COLUMN, "truncated": _TRUNCATED, "after": _AFTER},
    "regex": {"column": _COLUMN, "truncated": _TRUNCATED, "tolerance": _TOLERANCE, "pattern": _pattern("regex")},
    "format": {"truncated": _TRUNCATED, "pattern": _pattern("format")},
    "json": {
        "column": Option(default="", meaning="column whose JSON value the completion must equal; none if left out"),
        "truncated": _TRUNCATED,
        "after": _AFTER,
        "schema": Option(default="", max_chars=MAX_SCHEMA_CHARS, meaning="file with a JSON schema to satisfy"),
    },
    "math-verify": {"column": _COLUMN, "truncated": _TRUNCATED, "after": _AFTER},
    "reasoning-gym": {"truncated": _TRUNCATED, "after": _AFTER},
    "verifiers": {
        "taskset": Option(
            default="",
            required=True,
            identifier=True,
            example="verifiers:taskset=MODULE",
            meaning="the taskset's module",
        )
    },
    "function": {
        "function": Option(default="", identifier=True, required=True, example="FILE.py:FUNCTION", meaning="its name")
    },
}
"""Every scorer by its name, with its options."""

THIRD_PARTY = frozenset({"math-verify", "reasoning-gym", "verifiers", "function"})
"""Scorers that run code which is neither ours nor bounded: each answer gets a forked child of its own."""


def option_problem(option: Option, value: object) -> str:
    """What the value must be; empty if it is legal."""
    if isinstance(option.default, bool):
        return "" if isinstance(value, bool) else "yes or no"
    if isinstance(option.default, float):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        legal = number and math.isfinite(value) and 0 <= value <= option.highest  # type: ignore[arg-type,operator]
        return "" if legal else f"a number within 0..{option.highest:g}"
    if not isinstance(value, str):
        return "a text"
    if option.choices:
        return "" if value in option.choices else " or ".join(option.choices)
    if option.identifier:
        return (
            "" if value.isidentifier() and len(value) <= MAX_MARK_CHARS else "the name of a Python function or module"
        )
    return "" if 0 < len(value) <= option.max_chars else f"a text of 1..{option.max_chars} characters"


def unknown_scorer(name: str) -> ConfigError:
    """The error for a name that is no scorer."""
    if any(sign in name for sign in "/\\."):
        return ConfigError(
            f"unknown scorer: {name[:MAX_MARK_CHARS]!r}", remedy="Name a function of yours as FILE.py:FUNCTION."
        )
    return _unknown("scorer", name, [*SCORER_OPTIONS])


def unknown_option(scorer: str, name: str) -> ConfigError:
    """The error for an option that a scorer does not have."""
    return _unknown(f"option of the scorer {scorer!r}", name, [*SCORER_OPTIONS[scorer]])


def _unknown(kind: str, name: str, known: list[str]) -> ConfigError:
    shown = name[:MAX_MARK_CHARS]
    near = difflib.get_close_matches(shown, known, n=1, cutoff=0.5)
    remedy = f"Did you mean {near[0]!r}?" if near else f"Choose one of {', '.join(known)}."
    return ConfigError(f"unknown {kind}: {shown!r}", remedy=remedy)
