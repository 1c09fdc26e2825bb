"""Progress bar for work that reports its stage and fraction done."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from p2prl.cli.views.console import PLAIN_PERIOD_S, console, say

_TOLD_AFTER_S = 30.0
"""Before this the pace is that of loading and warming up, and an estimate would mislead."""

_TOLD_FROM = 0.03
"""Share of the work, for the same reason: a first step is measured to a few seconds, and multiplied by all the rest."""


def remaining(elapsed_s: float, share: float) -> str:
    """Time left at the pace so far, such as `, 12 min left`; empty too early to tell."""
    if elapsed_s < _TOLD_AFTER_S or not _TOLD_FROM <= share < 1.0:
        return ""
    minutes = elapsed_s * (1 - share) / share / 60
    if minutes < 90:
        return f", {max(1, round(minutes))} min left"
    return f", {minutes / 60:.1f} h left"


class _Pace:
    """The pace of the work, as its share done grows. Importing and loading, before it does, say nothing about it."""

    def __init__(self) -> None:
        self._began = 0.0
        self._first = self._last = math.inf

    def remaining(self, now: float, share: float) -> str:
        """As `remaining`, at the pace since the share last stood still at its start, or fell as a stage began."""
        if share <= self._first or share < self._last:
            self._began, self._first = now, share
        self._last = share
        if share <= self._first:
            return ""
        return remaining(now - self._began, (share - self._first) / (1.0 - self._first))


@contextmanager
def progress_bar(label: str, *, quiet: bool) -> Iterator[Callable[[str, float], None]]:
    """Yield a function that takes (stage, fraction done). Without a terminal it prints occasional lines."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    if quiet or not console.is_terminal:
        last_stage, next_at, pace = "", 0.0, _Pace()

        def print_stage(stage: str, share: float) -> None:
            nonlocal last_stage, next_at
            now = time.monotonic()
            left = pace.remaining(now, share)
            if quiet or (stage == last_stage and now < next_at):
                return
            say(f"{label}: {stage} …{left}" if stage != last_stage else f"{label}: {stage} {share:.0%}{left}")
            last_stage, next_at = stage, now + PLAIN_PERIOD_S

        yield print_stage
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    with bar:
        task = bar.add_task(label, total=1.0)
        yield lambda stage, share: bar.update(task, description=f"{label}: {stage}", completed=share)
