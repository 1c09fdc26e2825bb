"""A benchmark as `p2prl bench` takes it from this package and from others: a command and examples of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from p2prl.cli.examples import shown


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
