"""Startup phases of a role: finished ones with their duration, the current one with a spinner."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import RenderableType
from rich.spinner import Spinner
from rich.table import Table

_SHORT_S = 0.5
"""Finished phases shorter than this are not worth a line."""


class StartupPhases:
    """A renderable list of phases; times are updated at each redraw."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` gives seconds on a monotonic clock."""
        self._now = now
        self._finished: list[tuple[str, float]] = []
        self._name = ""
        self._detail = ""
        self._began = 0.0
        self._spinner = Spinner("dots")

    def begin(self, name: str, detail: str = "") -> bool:
        """Begin phase `name`, or update its `detail`. True when the phase is new."""
        self._detail = detail
        if name == self._name:
            return False
        if self._name and self._now() - self._began >= _SHORT_S:
            self._finished.append((self._name, self._now() - self._began))
        self._name, self._began = name, self._now()
        return True

    def line(self) -> str:
        """The current phase in one line."""
        return f"{self._name}: {self._detail}" if self._detail else f"{self._name} …"

    def __rich__(self) -> RenderableType:
        table = Table.grid(padding=(0, 1))
        for name, seconds in self._finished:
            table.add_row("✓", name, f"{seconds:.0f} s")
        detail = f": {self._detail}" if self._detail else ""
        table.add_row(self._spinner, f"{self._name}{detail}", f"{self._now() - self._began:.0f} s")
        return table
