"""Progress bar for work that reports its stage and fraction done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from p2prl.cli.views.console import PLAIN_PERIOD_S, console, say


@contextmanager
def progress_bar(label: str, *, quiet: bool) -> Iterator[Callable[[str, float], None]]:
    """Yield a function that takes (stage, fraction done). Without a terminal it prints occasional lines."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    if quiet or not console.is_terminal:
        last_stage, next_at = "", 0.0

        def print_stage(stage: str, share: float) -> None:
            nonlocal last_stage, next_at
            now = time.monotonic()
            if quiet or (stage == last_stage and now < next_at):
                return
            say(f"{label}: {stage} …" if stage != last_stage else f"{label}: {stage} {share:.0%}")
            last_stage, next_at = stage, now + PLAIN_PERIOD_S

        yield print_stage
        return
    bar = Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console, transient=True)
    with bar:
        task = bar.add_task(label, total=1.0)
        yield lambda stage, share: bar.update(task, description=f"{label}: {stage}", completed=share)
