"""Options that take several values separated by commas."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from p2prl.errors import ConfigError

N = TypeVar("N", int, float)


def listed(text: str) -> tuple[str, ...]:
    """The values of `text`, each once, without surrounding blanks."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def numbers(text: str, kind: Callable[[str], N], option: str) -> tuple[N, ...]:
    """The numbers of `text`. Raises `ConfigError` naming `option` when one is not a number."""
    try:
        return tuple(kind(part) for part in listed(text))
    except ValueError as error:
        raise ConfigError(
            f"{option} {text[:40]!r} is not a list of numbers", remedy=f"Separate them by commas: {option} 1,2,3"
        ) from error
