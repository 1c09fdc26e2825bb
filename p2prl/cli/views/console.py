"""Terminal output: messages on standard error, data on standard output, a live panel on terminals only."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console, RenderableType
from rich.live import Live
from rich.segment import Segment, Segments
from rich.spinner import Spinner
from rich.table import Table

from p2prl.plain_text import cleaned, encodable, wrapped


@contextmanager
def without_control_echo(descriptor: int = 0) -> Iterator[None]:
    """Keep the terminal at `descriptor` from showing control characters inside this block. No-op where it is none.

    What a process that is killed leaves behind is a shell that does not show `^C` either.
    """
    before = _set_echo(descriptor, shown=False)
    try:
        yield
    finally:
        if before:
            _set_echo(descriptor, shown=True)


def _set_echo(descriptor: int, *, shown: bool) -> bool:
    """Set it; whether it was shown. A process in the background may not: the system would stop it."""
    if sys.platform == "win32":
        return False
    import termios

    with suppress(OSError, termios.error):
        if os.tcgetpgrp(descriptor) != os.getpgrp():
            return False
        settings = termios.tcgetattr(descriptor)
        before = bool(settings[3] & termios.ECHOCTL)
        settings[3] = settings[3] | termios.ECHOCTL if shown else settings[3] & ~termios.ECHOCTL
        termios.tcsetattr(descriptor, termios.TCSANOW, settings)
        return before
    return False


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


PLAIN_PERIOD_S = 10.0
"""Interval of progress lines when there is no terminal."""

_DRAWS_PER_S = 4

console = Console(stderr=True, highlight=False)
_output = Console(highlight=False)


def say(message: str, *, unwrapped: bool = False) -> None:
    """Print one message, stripped of terminal control characters.

    On a terminal it is wrapped between words; `unwrapped` keeps links and tables on one line, easy to copy.
    """
    _print(console, message, unwrapped=unwrapped)


def show(line: str, *, unwrapped: bool = False) -> None:
    """Print a line that a command was asked for, as `say` does, but on standard output: for a pipe or a file."""
    _print(_output, line, unwrapped=unwrapped)


def output_width() -> int | None:
    """Columns of the terminal that standard output is; None for a pipe or a file, whose lines are not broken."""
    return _output.width if _output.is_terminal else None


_MOST_LINES = 8
"""Lines of a stranger's text on a terminal."""


def labelled(label: str, text: str, width: int | None) -> list[str]:
    """Paragraphs of a stranger's text below one another, beside a label; of a terminal's `width` the first few lines,
    whole for a file (None)."""
    lines: list[str] = []
    for paragraph in text.splitlines() or [""]:
        whole = cleaned(paragraph)
        lines += [whole] if width is None else textwrap.wrap(whole, max(20, width - len(label))) or [""]
    if width is not None and len(lines) > _MOST_LINES:
        lines = [*lines[: _MOST_LINES - 1], "…"]
    return [(label if place == 0 else " " * len(label)) + line for place, line in enumerate(lines)]


def _print(where: Console, message: str, *, unwrapped: bool) -> None:
    text = encodable(cleaned(message), where.encoding)
    for line in [text] if unwrapped or not where.is_terminal else wrapped(text, where.width):
        # Not soft_wrap: the live panel is drawn again with this line, and would lose its own wrapping.
        where.print(Segments([Segment(line), Segment.line()]), crop=False)


def emit(document: dict[str, object]) -> None:
    """Print the command's one JSON object."""
    sys.stdout.write(json.dumps(document, sort_keys=True) + "\n")
    sys.stdout.flush()


class LiveView:
    """Live display of a role: its startup phases, then a panel redrawn in place.

    Without a terminal it prints one line per phase, then occasional progress lines.
    """

    def __init__(self, *, quiet: bool = False, on_phase: Callable[[str, str], None] = lambda *_: None) -> None:
        """`on_phase` gets the name and the detail of each phase when it begins."""
        self._quiet = quiet
        self._on_phase = on_phase
        self._live: Live | None = None
        self._startup = StartupPhases(time.monotonic)
        self._last_line = ""
        self._next_line_at = 0.0
        self._panel: Callable[[], RenderableType] = lambda: self._startup

    @contextmanager
    def shown(self) -> Iterator[LiveView]:
        """Draw inside this block."""
        if console.is_terminal and not self._quiet:
            drawn = Live(console=console, get_renderable=lambda: self._panel(), refresh_per_second=_DRAWS_PER_S)
            with without_control_echo(), drawn as live:
                self._live = live
                try:
                    yield self
                finally:
                    self._live = None
        else:
            yield self

    def phase(self, name: str, detail: str = "") -> None:
        """Show the startup phase in progress; on a terminal, below the finished ones and with its duration."""
        is_new = self._startup.begin(name, detail)
        if is_new:
            self._on_phase(name, detail)
        self._panel = lambda: self._startup
        if self._live is None:
            self._print_line(self._startup.line(), at_once=is_new)
        elif is_new:
            self._live.refresh()

    def update(self, panel: Callable[[], RenderableType], line: Callable[[], str]) -> None:
        """Show the newest state. Only the form that will be displayed is rendered: `panel` on the thread that draws."""
        self._panel = panel
        if self._live is None and time.monotonic() >= self._next_line_at:
            self._print_line(line(), at_once=False)

    def _print_line(self, text: str, *, at_once: bool) -> None:
        now = time.monotonic()
        if self._quiet or not (at_once or now >= self._next_line_at):
            return
        if text != self._last_line:
            say(text)
            self._last_line = text
        self._next_line_at = now + PLAIN_PERIOD_S
