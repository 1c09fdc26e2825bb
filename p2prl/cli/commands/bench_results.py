"""Results of benchmarks on the terminal: tables and verdicts."""

from __future__ import annotations

from p2prl.cli.views.console import say


def print_table(markdown: str) -> None:
    """Print a table without wrapping, one line per row."""
    for line in markdown.splitlines():
        say(line, unwrapped=True)


def verdict_line(text: str, bound: float, measured: float | None, met: bool | None) -> str:
    """One line saying whether a benchmark's criterion is met; `met` is None when it was not measured."""
    answer = {True: "met", False: "NOT MET", None: "not measured"}[met]
    figure = "–" if measured is None else f"{measured:.3f}"
    return f"{answer:12}  {text}: {figure} (bound {bound:g})"
