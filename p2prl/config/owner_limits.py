"""The owner's limits on disk: a file with comments, what commands have set, and options of a start, in layers.

HOME/config.toml   written by hand: `[limits]`
HOME/limits.json   limits that `p2prl limits` has set, for every worker under this home
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from p2prl.config.toml_tables import read_toml
from p2prl.controls.limits import SPECS, Limits, checked, limit_spec
from p2prl.disk_full import replace_file, write_error
from p2prl.errors import ConfigError

_MOST_BYTES = 64 * 1024


def config_file(home: Path) -> Path:
    """The owner's file, there or not."""
    return home / "config.toml"


def load_limits(home: Path, options: Mapping[str, str] | None = None) -> Limits:
    """The limits in force for a worker that starts under `home` with these options.

    `ConfigError` names the file and the key, and suggests the right one.
    """
    return Limits.layered({"file": _of_file(home), "command": _remembered(home), "option": options or {}})


def remember_limits(home: Path, changes: Mapping[str, str]) -> None:
    """Keep what a command has set; `default` forgets it. `ConfigError` for a wrong one, or a file that no worker could
    start with, and nothing changes."""
    load_limits(home).changed(changes)
    kept = {**_remembered(home), **changes}
    kept = {name: text for name, text in kept.items() if text.strip().casefold() != "default"}
    path = home / "limits.json"
    try:
        replace_file(path, msgspec.json.format(msgspec.json.encode(kept)) + b"\n", private=True)
    except OSError as error:
        raise write_error(error, path) from error


def config_text() -> str:
    """A file with every limit, its meaning, default and an example, all commented out."""
    lines = [
        "# Limits of p2prl on this machine. Take the # away to set one; p2prl config shows what holds.",
        "",
        "[limits]",
    ]
    for spec in SPECS:
        lines += ["", f"# {spec.meaning} Default: {spec.default}.", f'# {spec.name} = "{spec.example}"']
    return "\n".join(lines) + "\n"


def _of_file(home: Path) -> dict[str, str]:
    path = config_file(home)
    if not path.exists():
        return {}
    tables = read_toml(path)
    for key in tables:
        if key != "limits":
            near = difflib.get_close_matches(key, ["limits"], n=1)
            remedy = "Did you mean [limits]?" if near else "It has one table: [limits]."
            raise ConfigError(f"{path}: unknown key {key!r}", remedy=remedy)
    found: dict[str, str] = {}
    for name, value in _flat(tables.get("limits", {})):
        try:
            found[name] = _text(name, value)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}", remedy=error.remedy) from error
    return found


def _text(name: str, value: object) -> str:
    """A value of the file as the text of a limit. `ConfigError` for an unknown name or a wrong value."""
    spec = limit_spec(name)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigError(f"{name} must be a text or a number", remedy=f'Write {name} = "…".')
    try:
        checked(name, str(value))
    except ConfigError as error:
        raise ConfigError(str(error), remedy=f'For example {name} = "{spec.example}".') from error
    return str(value)


def _flat(table: object, prefix: str = "") -> list[tuple[str, object]]:
    """Dotted keys of nested tables."""
    if not isinstance(table, Mapping):
        return [(prefix or "limits", table)]
    return [pair for key, value in table.items() for pair in _flat(value, f"{prefix}.{key}" if prefix else str(key))]


def _remembered(home: Path) -> dict[str, str]:
    path = home / "limits.json"
    try:
        with path.open("rb") as file:
            kept = msgspec.json.decode(file.read(_MOST_BYTES), type=dict[str, str])
        for name, text in kept.items():
            checked(name, text)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}", remedy="Fix its permissions, or give another folder with --home."
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is damaged: {error}", remedy=f"Delete {path} and set the limits again.") from error
    except ConfigError as error:  # as of an earlier release, whose figures needed no unit
        raise ConfigError(f"{path}: {error}", remedy=f"Correct it there, or delete {path} and set it again.") from error
    return kept
