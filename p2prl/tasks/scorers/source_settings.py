"""Settings after the `?` of a generated source of rows: `key=value&key=value`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from p2prl.errors import ConfigError

Progress = Callable[[int, int], None]
"""Takes the number of rows made and of all rows."""


def settings_of(name: str, query: str) -> dict[str, Any]:
    """Settings by name; values are JSON where they can be, else text. `ConfigError` for a part without `=`."""
    return dict(_setting(name, pair) for pair in query.split("&") if query)


def _setting(name: str, pair: str) -> tuple[str, Any]:
    key, equals, text = pair.partition("=")
    if not equals or not key.isidentifier():
        raise ConfigError(f"{name}: {pair[:64]!r} is no setting", remedy="Write settings as key=value&key=value.")
    text = unquote(text)
    try:
        return key, json.loads(text)
    except ValueError:
        return key, text
