"""The full-screen view of `p2prl top`: one worker's screen, the others in a line each, and the keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.rule import Rule
from rich.text import Text

from p2prl.cli.views.status_view import worker_lines
from p2prl.cli.views.worker_screen import WorkerScreen
from p2prl.plain_text import cleaned

_COMMANDS = {"p": "pause", "r": "resume", "F": "finish", "S": "stop"}
"""Ending a worker takes Shift: a slip of the finger must not."""


def command_of(key: str) -> str:
    """The command of a key; empty for others."""
    return _COMMANDS.get(key, "")


class TopView:
    """All workers of a home; `place` is the one shown in full."""

    def __init__(self, workers: Sequence[Mapping[str, Any]], place: int, *, now: float, message: str = "") -> None:
        """`workers` are documents of `p2prl status --json`, `now` Unix seconds, `message` the answer to a key."""
        self._workers = workers
        self._place = place
        self._now = now
        self._message = message

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        shown = self._workers[self._place]
        if shown.get("running") and shown.get("role") == "volunteer":
            yield WorkerScreen(shown, now=self._now, hints=False)
        else:
            for line in worker_lines(shown, now=self._now):
                yield Text(cleaned(line))
        rule = "-" if options.ascii_only else "─"
        if len(self._workers) > 1:
            yield Rule(style="dim", characters=rule)
            for number, worker in enumerate(self._workers):
                mark = ">" if number == self._place else " "
                heading = cleaned(worker_lines(worker, now=self._now)[0])
                yield Text(f"{mark} {heading}", no_wrap=True, overflow="ellipsis")
        yield Rule(style="dim", characters=rule)
        yield Text(self._keys(), style="bold")
        if self._message:
            yield Text(cleaned(self._message), style="cyan")

    def _keys(self) -> str:
        other = "  Tab next worker" if len(self._workers) > 1 else ""
        return f"p pause  r resume  F finish and end  S stop now{other}  q leave (the worker goes on)"
