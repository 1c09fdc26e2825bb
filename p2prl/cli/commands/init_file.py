"""`p2prl init --config FILE`: values of the options in a TOML file, so that a run can be made again."""

from __future__ import annotations

import difflib
from pathlib import Path

import typer

from p2prl.config.toml_tables import read_toml
from p2prl.errors import ConfigError

_PLAIN = (str, int, float, bool)


def take_defaults(context: typer.Context, path: Path | None) -> Path | None:
    """Make the file's values those of the options that the command line does not give.

    A key is an option's name without its dashes: `group-size`. `ConfigError` for another key, or a value that is none.
    """
    if path is None:
        return None
    names = {
        option.removeprefix("--"): parameter
        for parameter in context.command.params
        for option in parameter.opts
        if option.startswith("--") and option != "--config"
    }
    values: dict[str, object] = {}
    for key, value in read_toml(path.expanduser()).items():
        parameter = names.get(key.replace("_", "-"))
        if parameter is None or parameter.name is None:
            near = difflib.get_close_matches(key, names, n=1)
            known = (
                f"Did you mean {near[0]!r}?" if near else f"Keys are options without their dashes: {', '.join(names)}."
            )
            raise ConfigError(f"{path}: unknown key {key!r}", remedy=known)
        many = getattr(parameter, "multiple", False)
        listed = value if isinstance(value, list) else [value]
        if not all(isinstance(each, _PLAIN) for each in listed) or (isinstance(value, list) and not many):
            raise ConfigError(
                f"{path}: {key!r} is no value of --{key}", remedy=f"p2prl init --help shows what --{key} takes."
            )
        values[parameter.name] = listed if many else value
    context.default_map = values
    return path
