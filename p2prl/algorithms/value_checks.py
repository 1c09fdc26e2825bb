"""Checks of configuration values: each names the field and its legal range."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable

from p2prl.errors import ConfigError


def require_between(
    field: str, value: float, low: float, high: float, *, open_low: bool = False, open_high: bool = False
) -> None:
    """Raise ConfigError unless `value` lies in the interval from `low` to `high` (closed by default)."""
    above = value > low if open_low else value >= low
    below = value < high if open_high else value <= high
    if math.isnan(value) or not (above and below):
        interval = f"{'(' if open_low else '['}{low:g}, {high:g}{')' if open_high else ']'}"
        raise ConfigError(f"{field} = {value!r} is outside {interval}", remedy=f"Set {field} within {interval}")


def require_positive(field: str, value: float) -> None:
    """Raise ConfigError unless `value` is finite and above zero."""
    require_between(field, value, 0.0, math.inf, open_low=True, open_high=True)


def require_choice(field: str, value: str, choices: Iterable[str]) -> None:
    """Raise ConfigError, with the nearest legal spelling as remedy, unless `value` is one of `choices`."""
    known = sorted(choices)
    if value not in known:
        raise ConfigError(f"{field} = {value!r} is not valid", remedy=suggestion(value, known))


def suggestion(wrong: str, known: Iterable[str]) -> str:
    """One sentence: the nearest spelling among `known`, or all of them when none is near."""
    names = sorted(known)
    near = difflib.get_close_matches(wrong, names, n=1)
    return f"Did you mean {near[0]!r}?" if near else f"Choose one of: {', '.join(names)}"
