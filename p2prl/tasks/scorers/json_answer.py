"""`json`: the text is JSON, satisfies a schema, and equals the answer's JSON, as far as either is asked for."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from p2prl.errors import ConfigError
from p2prl.tasks.data.packed_data import Row
from p2prl.tasks.scorers.answer_text import UnusableRowError
from p2prl.tasks.scorers.extras import import_extra

MAX_DEPTH = 64
"""Nested arrays and objects. Deeper text is refused before a recursive parser sees it."""

_FENCED = re.compile(r"```(?:json|JSON)?[ \t]*\n(.*)\n[ \t]*```", re.DOTALL)

Satisfied = Callable[[object], bool]
"""Whether a JSON value satisfies a schema."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonAnswer:
    """Accepts one JSON value, alone or in one ```` ``` ```` fence, with nothing but white space around it.

    `{"name": "Ada"}` is accepted; `Here it is: {}` and `NaN` are not, nor are numbers beyond a double or of more than
    4,300 digits. With a schema the value must satisfy it; with a column it must equal that column's value (JSON
    text, or a JSON value): objects in any order of keys, 1 equal to 1.0, true not equal to 1.
    """

    column: str = ""
    satisfied: Satisfied | None = None

    def accepts(self, row: Row, text: str) -> bool:
        right = self._right(row) if self.column else None
        try:
            value = bounded_json(text)
            if self.satisfied is not None and not self.satisfied(value):
                return False
        except ValueError:
            return False
        return not self.column or same_json(value, right)

    def right_answer(self, row: Row) -> str | None:
        return json.dumps(self._right(row)) if self.column else None

    def _right(self, row: Row) -> object:
        value = row.get(self.column)
        if self.column not in row:
            raise UnusableRowError(f"the column {self.column!r} is missing")
        try:
            return bounded_json(value) if isinstance(value, str) else value
        except ValueError as error:
            raise UnusableRowError(f"the column {self.column!r} is no JSON: {str(error)[:80]}") from error


def bounded_json(text: str) -> object:
    """The JSON value of a text or of its one fence. `ValueError` for anything else, or when nested too deeply."""
    text = text.strip()
    fenced = _FENCED.fullmatch(text)
    text = fenced[1] if fenced else text
    if nesting(text) > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    return json.loads(text, parse_constant=_refuse, parse_float=_finite)


def nesting(text: str) -> int:
    """Deepest nesting of brackets outside strings."""
    depth = deepest = 0
    quoted = escaped = False
    for character in text:
        if escaped:
            escaped = False
        elif quoted:
            escaped, quoted = character == "\\", character != '"'
        elif character == '"':
            quoted = True
        elif character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest


def same_json(left: object, right: object) -> bool:
    """Whether two JSON values are equal; a truth value equals no number."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same_json(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same_json, left, right))
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return bool(left == right)


def schema_check(schema: str) -> Satisfied:
    """A check of values against a JSON schema (JSON text), offline and with linear-time patterns.

    `ConfigError` when the schema is none, refers to another document, or the library is not installed.
    """
    library = import_extra("jsonschema_rs", "scorers", scorer="json")
    try:
        validator = library.validator_for(schema, offline=True, pattern_options=library.RegexOptions())
    except (ValueError, library.ValidationError, library.ReferencingError) as error:
        raise ConfigError(
            f"json: the schema is refused: {str(error)[:200]}",
            remedy="Write a self-contained JSON schema whose patterns use neither look-around nor back-references.",
        ) from error
    satisfied: Satisfied = validator.is_valid
    return satisfied


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value
