"""Lists typed as one option, separated by commas."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from p2prl.errors import ConfigError

N = TypeVar("N", int, float)


def listed(text: str) -> tuple[str, ...]:
    """The parts of `text` between commas, each once, without blanks around them."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def numbers(text: str, kind: Callable[[str], N], option: str) -> tuple[N, ...]:
    """The numbers listed in `text`; ConfigError naming `option` when one is none."""
    try:
        return tuple(kind(part) for part in listed(text))
    except ValueError as error:
        raise ConfigError(
            f"{option} {text[:40]!r} is not a list of numbers", remedy="Separate them by commas."
        ) from error
