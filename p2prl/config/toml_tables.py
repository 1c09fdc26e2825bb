"""Parse TOML tables into frozen dataclasses; unknown keys and wrong types are errors that name the key."""

from __future__ import annotations

import difflib
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from p2prl.errors import ConfigError

T = TypeVar("T")

MOST_FILE_BYTES = 1_000_000
"""Bytes of a file of settings: twenty times those of any that people write."""


def read_small(path: Path) -> bytes:
    """The bytes of a file that people write. Raises `ConfigError` for a pipe, a device and what is far too long, and
    OSError."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ConfigError(f"{path} is a pipe or a device", remedy="Save it to a file, and give that.")
    with path.open("rb") as file:
        data = file.read(MOST_FILE_BYTES + 1)
    if len(data) > MOST_FILE_BYTES:
        raise ConfigError(f"{path} has more than {MOST_FILE_BYTES:,} bytes", remedy="Give the right file.")
    return data


def read_toml(path: Path) -> dict[str, object]:
    """The tables of a TOML file. Raises `ConfigError` naming the file and the line."""
    try:
        return tomllib.loads(read_small(path).decode("utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}", remedy="Check the path and its permissions."
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not UTF-8 text", remedy="Save it with the encoding UTF-8 in your editor."
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}", remedy="Fix that line; strings need quotes.") from error


def with_changes(table: Mapping[str, object], changes: Sequence[str]) -> dict[str, object]:
    """Tables with `KEY=VALUE` in place of what they say, where a dot leads into a table: `learner.updates=50`.

    A value is TOML, or a text where it is none. `ConfigError` for a change without `=`, and for a key below no table.
    """
    changed = dict(table)
    for text in changes:
        key, equals, value = text.partition("=")
        *tables, name = key.strip().split(".")
        if not equals or not name:
            raise ConfigError(f"--set {text[:60]!r} is not KEY=VALUE", remedy="For example: --set learner.updates=50")
        inner = changed
        for each in tables:
            below = inner.get(each, {})
            if not isinstance(below, Mapping):
                raise ConfigError(f"--set {text[:60]!r}: {each!r} is no table", remedy="See run.toml for its tables.")
            inner[each] = inner = dict(below)
        inner[name] = _toml_value(value.strip())
    return changed


def _toml_value(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def parse(kind: type[T], table: Mapping[str, object], *, where: str) -> T:
    """Parse `table` as a `kind`. `where` is shown in errors, as in `run.toml [learner]`.

    A field may name its key of earlier releases, which is still read: `field(metadata={"formerly": "old_key"})`.
    """
    assert is_dataclass(kind)
    hints = typing.get_type_hints(kind)
    known = {field.name: field for field in fields(kind)}
    renamed = {field.metadata["formerly"]: name for name, field in known.items() if "formerly" in field.metadata}
    for key in table:
        if renamed.get(key) in table:
            raise ConfigError(
                f"{where}: {renamed[key]!r} is set twice, once as {key!r}", remedy=f"Keep {renamed[key]!r} alone."
            )
        if key not in known and key not in renamed:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known keys: {', '.join(known)}."
            raise ConfigError(f"{where}: unknown key {key!r}", remedy=hint)
    values = {}
    for key, value in table.items():
        name = renamed.get(key, key)
        values[name] = _value(hints[name], value, where=f"{where}.{key}")
    for name, field in known.items():
        if name not in values and field.default is MISSING and field.default_factory is MISSING:
            raise ConfigError(f"{where}: {name!r} is missing", remedy=f"Add a line: {name} = …")
    return kind(**values)


def _value(hint: Any, value: Any, *, where: str) -> Any:
    if is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, Mapping):
            raise _wrong(where, "a table", value)
        return parse(hint, value, where=where)
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return _value(next(arm for arm in typing.get_args(hint) if arm is not type(None)), value, where=where)
    if origin is tuple:
        if not isinstance(value, list):
            raise _wrong(where, "a list", value)
        inner = typing.get_args(hint)[0]
        return tuple(_value(inner, item, where=where) for item in value)
    if origin is typing.Literal:
        if value not in typing.get_args(hint):
            raise _wrong(where, " or ".join(map(repr, typing.get_args(hint))), value)
        return value
    if origin is dict:
        if not isinstance(value, Mapping):
            raise _wrong(where, "a table", value)
        return dict(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is Path and isinstance(value, str):
        return Path(value).expanduser()
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise _wrong(where, f"a {hint.__name__}", value)
    return value


def _wrong(where: str, expected: str, value: object) -> ConfigError:
    return ConfigError(f"{where} must be {expected}, not {value!r}", remedy="Fix that line of the file.")
