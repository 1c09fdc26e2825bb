"""Rows of a data set, checked one by one: a usable prompt, one kind of prompt and of answer, every needed column."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from p2prl.errors import ConfigError
from p2prl.tasks.data.columns import ANSWER, NO_ANSWER, OWN_KEYS, Columns, choose_columns, has, missing_column, value_of
from p2prl.tasks.data.data_plan import DataPlan
from p2prl.tasks.data.data_source import DataSource
from p2prl.tasks.data.packed_data import row_record
from p2prl.tasks.data.prompts import Prompt, checked_prompt, kind_of
from p2prl.tasks.data.tool_messages import TOOLS, Tool, tools_of


@dataclass(frozen=True, slots=True)
class CheckedRow:
    """One usable row."""

    place: str
    """Where it is, for a message."""
    number: int
    """Its number in the source."""
    prompt: Prompt
    tools: tuple[Tool, ...]
    """Those that the model may call, in its column `tools`; most rows have none."""
    columns: dict[str, Any]
    """Its other columns, with the answer also as `answer`."""
    answered: bool
    """Whether `answer` holds an answer: one was chosen or found."""
    size_bytes: int
    """Bytes of the row as JSON."""


class CheckedRows:
    """The rows of a source, checked. The first row decides which columns hold prompt and answer, and their kinds."""

    def __init__(self, source: DataSource, plan: DataPlan) -> None:
        self._source = source
        self._plan = plan
        self._checks_answers = checks_answers(plan)
        self.chosen: Columns | None = None
        """Columns of prompt and answer, once a row was read."""
        self._kinds: dict[str, tuple[str, str]] = {}
        """Kind of a column's values, and the place of the first one."""

    def __iter__(self) -> Iterator[CheckedRow]:
        """Each row. `ConfigError` naming the first faulty one, or a source without rows."""
        number = -1
        for number, row in enumerate(islice(self._source.rows(), self._plan.most_rows)):
            yield self._checked(row, number, self._source.place(number))
        if number < 0:
            raise ConfigError(f"{self._source.place(0)}: there is no row", remedy="Give a file with at least one row.")

    def _checked(self, row: dict[str, object], number: int, place: str) -> CheckedRow:
        if not row:
            raise ConfigError(f"{place}: the row has no columns", remedy="Remove the row.")
        size_bytes = _checked_size(row, place)
        chosen = self._columns(row, place)
        needed = {"--prompt-column": chosen.prompt, "--answer-column": chosen.answer if self._checks_answers else ""}
        for option, name in needed.items():
            if name and not has(row, name):
                raise missing_column(row, name, place=place, option=option)
        self._refuse_input(row, chosen, place)
        template = self._plan.prompt_template
        given = value_of(row, chosen.prompt) if template is None else template.fill(row, place=place)
        prompt = checked_prompt(given, place=place, column=chosen.prompt)
        self._same_kind("prompt", prompt, place)
        replaced = chosen.prompt if template is None else "prompt"
        columns = {name: value for name, value in row.items() if name != replaced}
        if chosen.answer:
            columns[ANSWER] = self._answer(value_of(row, chosen.answer), place)
        for name in OWN_KEYS:
            if name in columns:
                raise ConfigError(
                    f"{place}: the column {name!r} is neither prompt nor answer, and its name has a meaning here",
                    remedy=f"Rename the column {name!r}.",
                )
        for name in sorted(self._plan.needed_columns - columns.keys()):
            raise self._unscorable(row, name, place)
        tools = tools_of(row.get(TOOLS))
        return CheckedRow(place, number, prompt, tools, columns, bool(chosen.answer), size_bytes)

    def _columns(self, row: dict[str, object], place: str) -> Columns:
        if self.chosen is None:
            plan = self._plan
            self.chosen = choose_columns(
                row,
                prompt=plan.prompt_column,
                answer=plan.answer_column,
                place=place,
                templated=plan.prompt_template is not None,
            )
        return self.chosen

    def _refuse_input(self, row: dict[str, object], chosen: Columns, place: str) -> None:
        """`ConfigError` for a row of Alpaca whose question is in two columns, unless the user chose the one."""
        if self._plan.prompt_column or chosen.prompt != "instruction":
            return
        value = row.get("input")
        if value.strip() if isinstance(value, str) else value:
            raise ConfigError(
                f"{place}: the prompt is in `instruction`, and the row's `input` would be left out",
                remedy="Join the two: --prompt '{instruction}\\n{input}'; or one alone: --prompt-column instruction.",
            )

    def _answer(self, value: object, place: str) -> object:
        if not self._checks_answers:
            return value
        if value is None or (isinstance(value, str) and not value.strip()):
            raise ConfigError(f"{place}: the answer is empty", remedy="Remove the row, or give it an answer.")
        self._same_kind("answer", value, place)
        return value

    def _same_kind(self, column: str, value: object, place: str) -> None:
        kind = kind_of(value)
        first, where = self._kinds.setdefault(column, (kind, place))
        if kind != first:
            raise ConfigError(
                f"{place}: the {column} is {kind}, and {first} in {where}", remedy="Give all rows the same kind."
            )

    def _unscorable(self, row: dict[str, object], name: str, place: str) -> ConfigError:
        if name == ANSWER:
            return ConfigError(
                f"{place}: no column of answers among {', '.join(sorted(row))[:400]}",
                remedy="Name it: --answer-column COLUMN; or choose a scorer that needs no answer.",
            )
        return missing_column(row, name, place=place, option="the scorer's column")


def checks_answers(plan: DataPlan) -> bool:
    """Whether every row needs a usable answer: a scorer compares with it, or the user named its column."""
    return ANSWER in plan.needed_columns or plan.answer_column not in ("", NO_ANSWER)


def _checked_size(row: dict[str, object], place: str) -> int:
    """Bytes of a row. `ConfigError` when it holds what UTF-8 or JSON cannot: every peer has to read the same bytes."""
    try:
        return len(row_record(row))
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{place}: a text has half of a surrogate pair", remedy="Save the text as valid Unicode."
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"{place}: a number is NaN or infinite", remedy="Remove the row, or give it a number."
        ) from error
