"""Panel and progress line of a running learner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table


def update_line(name: str, metrics: Mapping[str, Any], *, planned: int, first: bool) -> str:
    """The newest update in one line. `planned` is the run's number of updates, 0 for no end.

    The `first` update shows no pace, because its interval includes the wait for volunteers.
    """
    step = f"{metrics['step']:,.0f}" + (f"/{planned:,}" if planned else "")
    pace = "" if first else f"  {metrics['seconds']:.2f} s/update"
    return (
        f"{name}  step {step}  reward {metrics['reward']:.3f}  loss {metrics['loss']:+.4f}"
        f"  staleness p50/max {metrics['staleness_p50']:.0f}/{metrics['staleness_max']:.0f}"
        f"  from {metrics['peers']} {'volunteer' if metrics['peers'] == 1 else 'volunteers'}{pace}"
    )


def update_panel(name: str, metrics: Mapping[str, Any], *, planned: int, first: bool) -> RenderableType:
    """The newest update, redrawn in place; arguments as for `update_line`."""
    table = Table.grid(padding=(0, 2))
    step = f"update {metrics['step']:,.0f}" + (f" of {planned:,}" if planned else ", no end set")
    table.add_row(name, f"{step}   policy v{metrics['version']:.0f}")
    table.add_row("reward", f"{metrics['reward']:.3f}, mean of the newest batch   loss {metrics['loss']:+.4f}")
    median, largest = metrics["staleness_p50"], metrics["staleness_max"]
    table.add_row("staleness", f"median {median:.0f}, largest {largest:.0f} updates")
    pace = "" if first else f"   {metrics['seconds']:.2f} s an update"
    volunteers = f"{metrics['peers']} volunteer{'' if metrics['peers'] == 1 else 's'}"
    table.add_row("batch", f"{metrics['groups']} groups of {volunteers}{pace}")
    table.add_row("stop", "Ctrl-C finishes this update and saves; run the same command to resume")
    return table
