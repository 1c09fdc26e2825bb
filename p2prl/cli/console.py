"""What a person sees: messages on standard error, data on standard output, a live panel only on a terminal."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live

from p2prl.cli.plain import cleaned, wrapped

_PLAIN_PERIOD_S = 10.0
"""Without a terminal, progress is one line this often."""

console = Console(stderr=True, highlight=False)


def say(message: str, *, whole: bool = False) -> None:
    """One line for a person, cleaned of all that a terminal would obey.

    On a terminal it is broken between words; `whole` leaves that to the terminal, for links and tables that get copied.
    """
    text = cleaned(message)
    for line in [text] if whole or not console.is_terminal else wrapped(text, console.width):
        console.print(line, markup=False, soft_wrap=True)


def emit(document: dict[str, Any]) -> None:
    """The command's one JSON object."""
    sys.stdout.write(json.dumps(document, sort_keys=True) + "\n")
    sys.stdout.flush()


class View:
    """A panel redrawn in place on a terminal, an occasional line elsewhere."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._live: Live | None = None
        self._last_line = ""
        self._next_line_at = 0.0
        self._next_draw_at = 0.0

    @contextmanager
    def shown(self) -> Iterator[View]:
        """Draw inside this block."""
        if console.is_terminal and not self._quiet:
            with Live(console=console, refresh_per_second=4, transient=False) as live:
                self._live = live
                try:
                    yield self
                finally:
                    self._live = None
        else:
            yield self

    def update(self, panel: Callable[[], RenderableType], line: Callable[[], str]) -> None:
        """Show the newest state; both renderings are made only when they will be seen."""
        now = time.monotonic()
        if self._live is not None:
            if now >= self._next_draw_at:
                self._next_draw_at = now + 0.25
                self._live.update(panel())
        elif not self._quiet and now >= self._next_line_at:
            text = line()
            if text != self._last_line:
                say(text)
                self._last_line = text
            self._next_line_at = now + _PLAIN_PERIOD_S


class Interrupts:
    """Ctrl-C by degrees: the first asks to finish, the second to stop now, the third ends the process."""

    def __init__(self, finish: Callable[[], None], park: Callable[[], None], *, finishing: str) -> None:
        self._steps = [finish, park]
        self._finishing = finishing
        self.count = 0

    @contextmanager
    def handled(self) -> Iterator[Interrupts]:
        """Handle SIGINT and SIGTERM inside this block."""
        previous = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.count += 1
        if self.count > len(self._steps):
            raise KeyboardInterrupt
        if self.count == 1:
            say(self._finishing)
        self._steps[self.count - 1]()


@contextmanager
def progress(label: str, *, quiet: bool) -> Iterator[Callable[[str, float], None]]:
    """A progress bar for work of unknown length: call the yielded function with (stage, share done)."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    if quiet or not console.is_terminal:
        last_stage, next_at = "", 0.0

        def tell(stage: str, share: float) -> None:
            nonlocal last_stage, next_at
            now = time.monotonic()
            if quiet or (stage == last_stage and now < next_at):
                return
            say(f"{label}: {stage} …" if stage != last_stage else f"{label}: {stage} {share:.0%}")
            last_stage, next_at = stage, now + _PLAIN_PERIOD_S

        yield tell
        return
    bar = Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console, transient=True)
    with bar:
        task = bar.add_task(label, total=1.0)
        yield lambda stage, share: bar.update(task, description=f"{label}: {stage}", completed=share)
