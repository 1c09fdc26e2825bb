"""Rows of preferences as TRL has them: a prompt, the answer that was chosen, and the one that was rejected.

Answers are texts, or lists whose last message is the assistant's. A list may hold the whole conversation; then the
prompt is what both begin with, and needs no column of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from p2prl.errors import ConfigError
from p2prl.tasks.data.columns import PROMPT_NAMES, has, value_of
from p2prl.tasks.data.data_source import DataSource
from p2prl.tasks.data.prompts import Prompt, checked_prompt, kind_of
from p2prl.tasks.data.tool_messages import TOOLS, Tool, tools_of

CHOSEN, REJECTED = "chosen", "rejected"
"""Columns of the two answers."""

MOST_ROWS = 10_000_000
"""Rows of a file: more than anybody has compared, and within the numbers of a packed file."""


@dataclass(frozen=True, slots=True)
class PreferenceRow:
    """A pair of answers to a prompt."""

    place: str
    """Where it is, for a message."""
    prompt: Prompt
    chosen: str
    rejected: str
    tools: tuple[Tool, ...] = ()
    """Those that the model could call."""


def preference_rows(source: DataSource) -> Iterator[PreferenceRow]:
    """Each row, checked. `ConfigError` naming the place of the first faulty one, or a source without rows."""
    number = -1
    for number, row in enumerate(source.rows()):
        place = source.place(number)
        if number >= MOST_ROWS:
            raise ConfigError(f"{place}: there are more than {MOST_ROWS:,} rows", remedy="Give fewer.")
        yield _checked(row, place)
    if number < 0:
        raise ConfigError(f"{source.place(0)}: there is no row", remedy="Give a file with at least one row.")


def _checked(row: Mapping[str, object], place: str) -> PreferenceRow:
    for name in (CHOSEN, REJECTED):
        if not has(row, name):
            raise ConfigError(
                f"{place}: no column {name!r} among {', '.join(sorted(map(repr, row)))[:200] or 'none'}",
                remedy="A row of preferences has the columns prompt, chosen and rejected: rename yours.",
            )
    (before, chosen), (other, rejected) = (_answer(value_of(row, name), name, place) for name in (CHOSEN, REJECTED))
    if before != other:
        raise ConfigError(
            f"{place}: the conversations differ before the last message", remedy="Compare answers to one prompt."
        )
    column = next((name for name in PROMPT_NAMES if has(row, name)), "")
    given: object = before
    if column:
        given = _joined(value_of(row, column), before, place)
    elif not before:
        raise ConfigError(
            f"{place}: there is no prompt", remedy="Call its column prompt, or write chosen and rejected as messages."
        )
    prompt = checked_prompt(given, place=place, column=column or CHOSEN)
    return PreferenceRow(place, prompt, chosen, rejected, tools_of(value_of(row, TOOLS)))


def _joined(prompt: object, before: list[object], place: str) -> object:
    """The prompt of its column; with messages before the answers it must be one of them, or all."""
    if not before or prompt == before:
        return before or prompt
    last = before[-1]
    if isinstance(prompt, str) and isinstance(last, dict) and last.get("content") == prompt:
        return before  # as in UltraFeedback, whose prompt is the first message again
    raise ConfigError(
        f"{place}: the prompt is not that of the conversations", remedy="Remove the column prompt, or correct it."
    )


def _answer(value: object, name: str, place: str) -> tuple[list[object], str]:
    """(messages before it, text of the answer)."""
    before: list[object] = []
    if isinstance(value, list) and value:
        *before, last = value
        if not isinstance(last, dict) or last.get("role") != "assistant":
            raise ConfigError(f"{place}: the last message in {name!r} is not the assistant's", remedy="Reorder it.")
        value = last.get("content")
    if not isinstance(value, str):
        raise ConfigError(
            f"{place}: the answer in {name!r} is {kind_of(value)}", remedy="Write it as a text, or as messages."
        )
    if not value.strip():
        raise ConfigError(f"{place}: the answer in {name!r} is empty", remedy="Remove the row.")
    return before, value
