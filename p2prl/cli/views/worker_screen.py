"""The screen of a volunteer: what the machine does now, what it has earned, how the run learns, how to stop it.

Drawn from the document that is also the worker's status file, so `join` and `top` show the same. One column on a narrow
terminal, two on a wide one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from p2prl.cli.views.quantities import (
    energy_text,
    peers_text,
    rate_text,
    reach_text,
    reaches_learner,
    received_text,
    reward_text,
    version_text,
)
from p2prl.cli.views.receipt_advice import rejection_lines
from p2prl.client.progress import SEARCHING
from p2prl.errors import IdentityError
from p2prl.plain_text import cleaned, counted
from p2prl.protocol.identity import PeerId, public_key_of
from p2prl.quantity_text import size_text
from p2prl.scoreboard.display_names import display_name
from p2prl.scoreboard.ledger.escrow import ESCROW_GROUPS
from p2prl.time_text import age_text

_BLOCKS = " ▁▂▃▄▅▆▇█"
_ASCII = " .:-=+*%#"
"""For terminals that cannot show blocks, from empty to full as `_BLOCKS`."""

_FULL = len(_BLOCKS) - 1


def sparkline(values: Sequence[float], width: int, *, ascii_only: bool = False) -> str:
    """The values in one row of at most `width` characters, the lowest as the lowest block."""
    return "".join(plot(values, width, 1, ascii_only=ascii_only))


def plot(values: Sequence[float], width: int, rows: int, *, ascii_only: bool = False) -> list[str]:
    """The values as `rows` lines of at most `width` characters, from the top; more values are averaged in neighbors.

    The lowest value is one step high, so that it differs from nothing; values that are all equal are half high.
    """
    columns = _averaged(values, width)
    if not columns or rows < 1:
        return [""] * rows
    low, high = min(columns), max(columns)
    steps = rows * _FULL
    heights = [
        steps // 2 if high <= low else 1 + round((value - low) / (high - low) * (steps - 1)) for value in columns
    ]
    blocks = _ASCII if ascii_only else _BLOCKS
    return [
        "".join(blocks[max(0, min(_FULL, height - row * _FULL))] for height in heights) for row in reversed(range(rows))
    ]


def _averaged(values: Sequence[float], width: int) -> list[float]:
    """At most `width` means of neighbors, each of nearly as many values."""
    count = min(len(values), max(0, width))
    edges = [round(place * len(values) / count) for place in range(count + 1)] if count else []
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]


WIDE = 110
"""Columns from which the machine and the run stand side by side."""

_LABEL = 9
"""Columns of the labels and the gap after them."""

_BAR = 20
_CURVE_ROWS = 5
_MOST_REASONS = 2

_STOP = "Ctrl-C ends after the current groups, twice at once; finished work is kept"
_PAUSE = "p2prl pause frees the memory at once, p2prl resume goes on"
_RESUME = "p2prl resume ends a pause; p2prl limits shows what else makes it rest"

Rows = list[tuple[str, str | Text]]


class WorkerScreen:
    """A volunteer's state as a renderable for a terminal of any width."""

    def __init__(self, worker: Mapping[str, Any], *, now: float, hints: bool = True) -> None:
        """`worker` is a status file's document, `now` Unix seconds. `hints` says how to pause and stop."""
        self._worker = worker
        self._run: Mapping[str, Any] = worker.get("run_progress") or {}
        self._now = now
        self._hints = hints

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width, ascii_only = options.max_width, options.ascii_only
        yield self._heading(width, ascii_only=ascii_only)
        if width >= WIDE:
            half = (width - 3) // 2
            sides = Table.grid(padding=(0, 3, 0, 0))
            sides.add_column(width=half)
            sides.add_column(width=half)
            machine = [*self._now_rows(), *self._credit_rows(), *self._energy_rows()]
            plotted = [*self._next_rows(ascii_only=ascii_only), *self._plot_rows(half, ascii_only=ascii_only)]
            sides.add_row(_grid(machine, half), _grid(plotted, half))
            yield sides
            yield _grid([*self._unpaid_rows(), *self._given_rows()], width)
        else:
            rows = [
                *self._now_rows(),
                *self._next_rows(ascii_only=ascii_only),
                *self._spark_rows(width, ascii_only=ascii_only),
                *self._credit_rows(),
                *self._energy_rows(),
                *self._unpaid_rows(),
                *self._given_rows(),
            ]
            yield _grid(rows, width)
        if self._hints and not has_ended(self._worker):
            yield Rule(style="dim", characters="-" if ascii_only else "─")
            yield _grid(hints_of(self._worker), width)

    # --- the parts ----------------------------------------------------------------------------------------------

    def _heading(self, width: int, *, ascii_only: bool) -> Table:
        badge, style = badge_of(self._worker)
        mark = ("* " if ascii_only else "● ") if style == "green" else ("o " if ascii_only else "○ ")
        heading = Table.grid(expand=True)
        heading.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        heading.add_column(justify="right", no_wrap=True)
        name = Text.assemble((cleaned(str(self._worker.get("run", "a run"))), "bold"), "  ", (self._name(), "cyan"))
        heading.add_row(name, Text(f"  {mark}{badge}", style=f"bold {style}"))
        heading.width = width
        return heading

    def _name(self) -> str:
        peer = str(self._worker.get("peer", ""))
        try:
            return f"{display_name(public_key_of(PeerId(peer)))} ({peer[-8:]})"
        except IdentityError:
            return ""

    def _now_rows(self) -> Rows:
        worker = self._worker
        state = cleaned(str(worker.get("state") or "starting"))
        if worker.get("resting") and state == "sampling":
            state = "coming to rest"
        speed = f"   {rate_text(worker.get('tokens_per_s', 0.0))}" if state == "sampling" else ""
        rows: Rows = [("now", f"{state}{speed}")]
        if is_offline(worker):
            since = self._run.get("cut_off_since")
            ago = "" if since is None else f" for {age_text(self._now - since)}"
            text = f"no peer answers{ago}; sampling goes on and finished groups wait on disk"
            rows.append(("offline", Text(text, style="bold red")))
        elif not reaches_learner(worker) and not worker.get("resting") and not has_ended(worker):
            rows.append(("learner", Text("unreachable; finished groups wait on disk", style="yellow")))
        freed = worker.get("resting") and worker.get("version", -1) < 0
        version = "none in memory while it rests" if freed else version_text(worker.get("version", -1))
        rows.append(("policy", version + self._step()))
        return rows

    def _step(self) -> str:
        step = max(self._run.get("step", -1), worker_step(self._worker))
        return f"   the run is at learner step {step:,}" if step >= 0 else ""

    def _next_rows(self, *, ascii_only: bool) -> Rows:
        worker = self._worker
        if worker.get("resting") or is_offline(worker) or has_ended(worker):
            return []  # what was heard last says nothing about now, and after its end a run has no next version
        if (announced := worker.get("announced_version", -1)) > worker.get("version", -1):
            held, total = [*(worker.get("fetching") or ()), 0, 0][:2]
            text = f"v{announced} is out"
            if total:
                bar = _bar(held / total, ascii_only=ascii_only)
                text += f"   {bar} {held:,} of {counted(total, 'chunk')} here"
            return [("next", text)]
        share: float | None = self._run.get("next_share")
        if share is None or announced < 0:
            return []
        seconds = self._run.get("next_s")
        due = "" if seconds is None else f", {'any moment' if seconds < 1 else f'in about {age_text(seconds)}'}"
        return [("next", f"v{announced + 1} {_bar(share, ascii_only=ascii_only)} {share:.0%}{due}")]

    def _curve_text(self) -> str:
        curve = self._run.get("curve") or []
        steps = f"steps {curve[0][0]:,} to {curve[-1][0]:,}, of everybody's groups"
        return f"{reward_text(curve[0][1])} → {reward_text(curve[-1][1])}   {steps}"

    def _spark_rows(self, width: int, *, ascii_only: bool) -> Rows:
        curve = self._run.get("curve") or []
        if len(curve) < 2:
            return []
        text = _plain(self._curve_text(), ascii_only=ascii_only)
        line = sparkline([point[1] for point in curve], max(8, width - _LABEL - len(text) - 3), ascii_only=ascii_only)
        return [("reward", Text.assemble((line, "green"), "   ", text))]

    def _plot_rows(self, width: int, *, ascii_only: bool) -> Rows:
        curve = self._run.get("curve") or []
        if len(curve) < 2:
            return [("reward", "the curve begins with the next judged groups")]
        values = [point[1] for point in curve]
        lines = plot(values, width - _LABEL, _CURVE_ROWS, ascii_only=ascii_only)
        ends = {0: reward_text(max(values)), _CURVE_ROWS - 1: reward_text(min(values))}
        rows: Rows = [("reward", _plain(self._curve_text(), ascii_only=ascii_only))]
        return [*rows, *((ends.get(row, ""), Text(line, style="green")) for row, line in enumerate(lines))]

    def _credit_rows(self) -> Rows:
        worker = self._worker
        groups = worker.get("groups", {})
        verified, rejected = groups.get("verified", 0), groups.get("rejected", 0)
        tokens = counted(worker.get("verified_tokens", 0), "token")
        rows: Rows = [("credit", f"{counted(verified, 'group')} verified, {tokens} credited")]
        if verified and not has_ended(worker):
            newest = "the newest" if verified == 1 else f"the newest {min(verified, ESCROW_GROUPS):,}"
            rows.append(("", f"{newest} in escrow until more are verified or the run ends"))
        if judged := verified + rejected:
            rows.append(("checked", f"{verified / judged:.0%} of {counted(judged, 'judged group')} passed"))
        waiting = groups.get("generated", 0) + groups.get("delivered", 0)
        late = f"   {groups['expired']:,} too old" if groups.get("expired") else ""
        rows.append(("groups", f"{waiting:,} waiting for a verdict   {rejected:,} rejected{late}"))
        if worker.get("reward_recent") is not None:
            rows.append(("yours", f"reward {reward_text(worker['reward_recent'])}, mean of your recent groups"))
        return rows

    def _energy_rows(self) -> Rows:
        text = energy_text(self._worker.get("energy"))
        return [("energy", text)] if text else []

    def _unpaid_rows(self) -> Rows:
        """Why groups earned nothing, in a sentence each, most frequent first."""
        lines = rejection_lines(self._worker.get("reasons") or {})
        rows: Rows = [("unpaid", Text(line, style="yellow")) for line in lines[:_MOST_REASONS]]
        return [*rows, ("", "each of them: p2prl receipts list, p2prl receipts explain")] if rows else []

    def _given_rows(self) -> Rows:
        worker = self._worker
        sent = size_text(worker.get("weight_bytes_sent", 0))
        rows: Rows = [("gives", f"{sent} of weights sent to others; {received_text(worker)}")]
        if not worker.get("resting"):
            rows.append(("peers", "none" if is_offline(worker) else peers_text(worker.get("peers", {}))))
        if reach := reach_text(str(worker.get("reach", ""))):
            rows.append(("reach", reach))
        return rows


_STARTING = ("", "starting", "looking for the run", SEARCHING)
_ENDED = ("the run is finished", "finished")


def hints_of(worker: Mapping[str, Any]) -> Rows:
    """How to pause it, or to end its rest, and how to stop it."""
    return [("resume", _RESUME) if worker.get("resting") else ("pause", _PAUSE), ("stop", _STOP)]


def has_ended(worker: Mapping[str, Any]) -> bool:
    """Whether the learner has ended the run: nothing is left to wait for, to pause or to stop."""
    return worker.get("state", "") in _ENDED


def is_offline(worker: Mapping[str, Any]) -> bool:
    """Whether no peer is linked any more, and nobody asked for that."""
    started = worker.get("state", "") not in (*_STARTING, *_ENDED)
    return started and not any(worker.get("peers", {}).values()) and not worker.get("resting")


def badge_of(worker: Mapping[str, Any]) -> tuple[str, str]:
    """The state in a word or two, and its color."""
    if worker.get("resting"):
        return "RESTING", "yellow"
    if worker.get("state", "") in _STARTING:
        return "starting", "yellow"
    if has_ended(worker):
        return "run ended", "green"
    if is_offline(worker):
        return "OFFLINE", "red"
    if not reaches_learner(worker):
        return "online, no learner", "yellow"
    return "online", "green"


def worker_step(worker: Mapping[str, Any]) -> int:
    """Learner step of the newest announced version; −1 before the first."""
    return int(worker.get("learner_step", -1))


def _grid(rows: Rows, width: int) -> Table:
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=_LABEL - 1, style="dim", no_wrap=True)
    grid.add_column(width=width - _LABEL)
    for label, text in rows:
        grid.add_row(label, text if isinstance(text, Text) else Text(text))
    return grid


def _bar(share: float, *, ascii_only: bool) -> str:
    full, empty = ("#", "-") if ascii_only else ("█", "░")
    done = round(_BAR * max(0.0, min(1.0, share)))
    return full * done + empty * (_BAR - done)


def _plain(text: str, *, ascii_only: bool) -> str:
    return text.replace("→", "to") if ascii_only else text
