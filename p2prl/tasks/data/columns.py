"""Columns of a data set: which holds the prompt and which the answer, by their usual names or by the user's."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from p2prl.errors import ConfigError

PROMPT_NAMES = ("prompt", "question", "problem", "instruction", "messages")
"""Usual names of a prompt's column, the most telling first."""

ANSWER_NAMES = ("answer", "solution", "ground_truth", "target", "label", "reward_model.ground_truth")
"""Usual names of an answer's column, the most telling first; the last is verl's."""

ANSWER = "answer"
"""Key under which scorers find the answer, whatever its column is called."""

NO_ANSWER = "none"
"""Choice of the answer's column for data whose answers no scorer reads."""

OWN_KEYS = ("prompt", "rendered")
"""Keys of a packed row that are not columns of the data."""

_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns that hold the prompt and the answer. A dot leads into an object: `reward_model.ground_truth`."""

    prompt: str
    """Empty if a template makes the prompts."""
    answer: str
    """Empty if the data has no answers."""


def choose_columns(
    row: Mapping[str, object], *, prompt: str, answer: str, place: str, templated: bool = False
) -> Columns:
    """Columns of a data set, from its first row. `prompt` and `answer` are the user's choice, empty to find one;
    an `answer` of `none` finds none. A `templated` prompt has no column of its own.

    `ConfigError` naming the columns there are when the prompt's is not among them, or a chosen one is missing.
    """
    found_prompt = prompt or next((name for name in PROMPT_NAMES if has(row, name) and not templated), "")
    found_answer = answer or next((name for name in ANSWER_NAMES if has(row, name)), "")
    found_answer = "" if answer == NO_ANSWER else found_answer
    if not found_prompt and not templated:
        raise ConfigError(
            f"{place}: no column of prompts among {_listed(row)}",
            remedy="Name it: --prompt-column COLUMN; call it prompt; or make prompts of several: --prompt '{a}\\n{b}'.",
        )
    for option, name in (("--prompt-column", found_prompt), ("--answer-column", found_answer)):
        if name and not has(row, name):
            raise missing_column(row, name, place=place, option=option)
    return Columns(found_prompt, found_answer)


def has(row: Mapping[str, object], name: str) -> bool:
    """True when a row has a column."""
    return _find(row, name) is not _ABSENT


def value_of(row: Mapping[str, object], name: str) -> object:
    """Value of a column; None if the row lacks it."""
    found = _find(row, name)
    return None if found is _ABSENT else found


def missing_column(row: Mapping[str, object], name: str, *, place: str, option: str) -> ConfigError:
    """The error for a row without a column that it needs."""
    close = difflib.get_close_matches(name, list(row), n=1)
    return ConfigError(
        f"{place}: there is no column {name!r} among {_listed(row)}",
        remedy=f"Did you mean {option} {close[0]}?" if close else f"Every row needs it; or name another with {option}.",
    )


def _find(row: Mapping[str, object], name: str) -> object:
    if name in row:
        return row[name]
    value: object = row
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return _ABSENT
        value = value[part]
    return value


def _listed(row: Mapping[str, object] | Sequence[str]) -> str:
    names = sorted(row)
    shown = ", ".join(name[:40] for name in names[:12])
    return f"{shown} and {len(names) - 12} more" if len(names) > 12 else shown or "no columns"
