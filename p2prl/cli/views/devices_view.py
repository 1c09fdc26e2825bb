"""The screen of a `p2prl join` on several devices: a row for each, and how to pause and stop them all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from p2prl.cli.views.quantities import rate_text, reaches_learner, state_text, version_text
from p2prl.cli.views.worker_screen import has_ended, hints_of
from p2prl.errors import IdentityError
from p2prl.plain_text import cleaned, counted
from p2prl.protocol.identity import PeerId, public_key_of
from p2prl.scoreboard.display_names import display_name

_FULL = 100
"""Columns from which every figure is shown."""

_NARROW = 60
"""Columns below which only the most important ones are."""

_FIGURES = ("tokens/s", "verified", "waiting")


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceRow:
    """One device and what its worker does."""

    device: str
    phase: str
    """Phase of its start, until it has a status."""
    exit_code: int | None
    status: Mapping[str, Any]
    """Its status file; empty before the first."""

    @property
    def state(self) -> str:
        """What it does now, in words."""
        if self.exit_code is not None:
            return str(self.status.get("state") or "ended") + f", exit code {self.exit_code}"
        if not self.status.get("state"):
            return self.phase
        return state_text(str(self.status["state"]), in_reach=reaches_learner(self.status))

    @property
    def tokens_per_s(self) -> float:
        """0 while it does not sample."""
        samples = self.exit_code is None and self.status.get("state") == "sampling"
        return float(self.status.get("tokens_per_s", 0.0)) if samples else 0.0

    def groups(self, *states: str) -> int:
        """How many of its groups are in these states."""
        return sum(self.status.get("groups", {}).get(state, 0) for state in states)

    @property
    def name(self) -> str:
        """Its name on the board."""
        try:
            return display_name(public_key_of(PeerId(str(self.status.get("peer", "")))))
        except IdentityError:
            return ""


class DevicesScreen:
    """All devices as a renderable for a terminal of any width."""

    def __init__(self, rows: Sequence[DeviceRow], *, now: float) -> None:
        self._rows = rows
        self._now = now

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        run = next((str(row.status["run"]) for row in self._rows if row.status.get("run")), "")
        total, workers = sum(row.tokens_per_s for row in self._rows), counted(len(self._rows), "worker")
        yield Text.assemble((cleaned(run), "bold"), "  " * bool(run), f"{workers}   {rate_text(total)}")
        columns = _columns(options.max_width)
        table = Table.grid(padding=(0, 2, 0, 0))
        widths = {title: max(len(title), *(len(cell(row)) for row in self._rows)) for title, cell in columns.items()}
        others = sum(widths.values()) - widths["now"] + 2 * len(widths)
        widths["now"] = max(1, min(widths["now"], options.max_width - others))
        for title, width in widths.items():
            side: JustifyMethod = "right" if title in _FIGURES else "left"
            table.add_column(width=width, justify=side, no_wrap=True, overflow="ellipsis")
        table.add_row(*(Text(title, style="dim") for title in columns))
        for row in self._rows:
            table.add_row(*(Text(cleaned(cell(row))) for cell in columns.values()))
        yield table
        running = next((row for row in self._rows if row.exit_code is None), None)
        if running is not None and not has_ended(running.status):
            yield Rule(style="dim", characters="-" if options.ascii_only else "─")
            for label, text in hints_of(running.status):
                yield Text.assemble((f"{label:9}", "dim"), text)


def _columns(width: int) -> dict[str, Callable[[DeviceRow], str]]:
    """What is shown of each device, by its title; less on a narrow terminal."""
    columns: dict[str, Callable[[DeviceRow], str]] = {
        "device": lambda row: row.device,
        "name": lambda row: row.name,
        "now": lambda row: row.state,
        "policy": lambda row: version_text(int(row.status.get("version", -1))),
        "tokens/s": lambda row: f"{row.tokens_per_s:,.0f}" if row.tokens_per_s else "",
        "verified": lambda row: f"{row.groups('verified'):,}",
        "waiting": lambda row: f"{row.groups('generated', 'delivered'):,}",
    }
    left_out = ("name", "policy", "waiting") if width < _NARROW else ("name", "policy") if width < _FULL else ()
    return {title: cell for title, cell in columns.items() if title not in left_out}


def devices_line(rows: Sequence[DeviceRow]) -> str:
    """All devices in one line."""
    parts = [f"{row.device} {row.state}, {row.groups('verified'):,} verified" for row in rows]
    return f"{rate_text(sum(row.tokens_per_s for row in rows))}   {'   '.join(parts)}"
