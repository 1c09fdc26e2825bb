"""Changes of a run.toml that keep its comments: `KEY=VALUE` in place of what its text says."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence

from p2prl.config.toml_tables import with_changes
from p2prl.errors import ConfigError

_HEADER = re.compile(r"^\s*\[(?P<table>[^\[\]]+)\]\s*(?:#.*)?$")


def changed_text(text: str, changes: Sequence[str]) -> str:
    """The text of settings with some `KEY=VALUE` in them (`with_changes`), each on a line of its own.

    `ConfigError` for a change that is none, or that fits no line, such as a key inside of a table in braces.
    """
    for change in changes:
        wanted = with_changes(tomllib.loads(text), [change])
        key = change.partition("=")[0].strip()
        *tables, name = key.split(".")
        value: object = wanted
        for each in (*tables, name):
            assert isinstance(value, dict), "with_changes has set it"
            value = value[each]
        text = _with_line(text, ".".join(tables), name, _toml(value))
        if _read(text) != wanted:  # a layout that this editor does not know
            raise ConfigError(
                f"--set {change[:60]!r} does not fit into the settings of a new run",
                remedy=f"Leave it out, and write it into run.toml; or set all of {'.'.join(tables) or key!r} at once.",
            )
    return text


def _read(text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return {}


def _with_line(text: str, table: str, name: str, value: str) -> str:
    """The text with `name = value` in a table: in place of its line, at the table's beginning, or in a new table."""
    lines, line = text.splitlines(), f"{name} = {value}"
    at, begins = "", 0 if not table else None
    for number, each in enumerate(lines):
        if header := _HEADER.match(each):
            at = header["table"].strip()
            begins = number + 1 if at == table else begins
        elif at == table and re.match(rf"{re.escape(name)}\s*=", each):
            lines[number] = line
            return "\n".join(lines) + "\n"
    if begins is None:
        lines += ["", f"[{table}]", line]
    else:
        lines.insert(begins, line)
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    """A value as TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return str(value).lower() if isinstance(value, bool) else repr(value)
