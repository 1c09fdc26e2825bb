"""A benchmark as `p2prl bench` takes it from this package and from others: command, examples, lists and tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from p2prl.cli.examples import shown
from p2prl.cli.views.console import say
from p2prl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Benchmark:
    """What an entry point of the group `p2prl.benchmarks` names. Its module is imported for each help page."""

    command: Callable[..., None]
    """The function that runs it, with typer's annotations."""

    examples: tuple[str, ...]
    """Whole command lines, for the help page."""

    @property
    def epilog(self) -> str:
        """The end of the help page."""
        return shown(self.examples)


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


def print_table(markdown: str) -> None:
    """Print a table without wrapping, one line per row."""
    for line in markdown.splitlines():
        say(line, unwrapped=True)


def verdict_line(text: str, bound: float, measured: float | None, met: bool | None) -> str:
    """One line saying whether a benchmark's criterion is met; `met` is None when it was not measured."""
    answer = {True: "met", False: "NOT MET", None: "not measured"}[met]
    figure = "–" if measured is None else f"{measured:.3f}"
    return f"{answer:12}  {text}: {figure} (bound {bound:g})"
