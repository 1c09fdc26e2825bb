"""Prompts made of several columns: `{question}\\n{choices:letters}`. Text with names of columns in it, and no code."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from p2prl.errors import ConfigError
from p2prl.tasks.data.columns import has, missing_column, value_of

_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_LETTERS = "letters"
_EXAMPLE = "For example: --prompt '{question}\\n{choices:letters}'; {{ and }} stand for braces."


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """A checked template."""

    text: str

    @classmethod
    def read(cls, text: str) -> PromptTemplate:
        """A template as typed: `\\n` and `\\t` are a line end and a tab. `ConfigError` for braces that hold no name."""
        template = cls(text.replace("\\n", "\n").replace("\\t", "\t"))
        if not list(template.columns()):
            raise ConfigError(f"--prompt {text[:80]!r} names no column", remedy=_EXAMPLE)
        return template

    def columns(self) -> Iterator[str]:
        """The columns that it names, in order. `ConfigError` as `read`."""
        for match in _PIECE.finditer(self.text):
            if match[0] in ("{{", "}}"):
                continue
            name, colon, form = (match[1] or "").partition(":")
            if not name or (colon and form != _LETTERS):
                raise ConfigError(f"--prompt: {match[0][:40]!r} names no column", remedy=_EXAMPLE)
            yield name

    def fill(self, row: Mapping[str, object], *, place: str) -> str:
        """The prompt of a row. `ConfigError` naming the place for a column that is missing or holds no text."""

        def value(match: re.Match[str]) -> str:
            if match[0] in ("{{", "}}"):
                return match[0][0]
            name, _, form = match[1].partition(":")
            if not has(row, name):
                raise missing_column(row, name, place=place, option="--prompt's")
            return _written(value_of(row, name), form, name=name, place=place)

        return _PIECE.sub(value, self.text)


def _written(value: object, form: str, *, name: str, place: str) -> str:
    """A value as text: a number as JSON writes it, a list of texts or numbers with one a line."""
    if isinstance(value, str) and not form:
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and not form:
        return f"{value:g}" if isinstance(value, float) and value.is_integer() else str(value)
    if isinstance(value, list) and value and (not form or len(value) <= len(string.ascii_uppercase)):
        lines = [_written(each, "", name=name, place=place) for each in value if not isinstance(each, list)]
        if len(lines) == len(value):
            marks = [f"{letter}. " for letter in string.ascii_uppercase] if form else [""] * len(lines)
            return "\n".join(mark + line for mark, line in zip(marks, lines, strict=False))
    raise ConfigError(
        f"{place}: {name!r} is no {'list of up to 26 texts' if form else 'text, number or list of them'}",
        remedy="Leave the column out of --prompt, or correct the row.",
    )
