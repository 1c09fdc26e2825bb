"""The owner's contribution as lines for people: a row for each run, the sum, and the last two weeks."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from p2prl.cli.views.small_curve import sparkline
from p2prl.plain_text import cleaned, counted, wrapped
from p2prl.quantity_text import credit
from p2prl.time_text import age_text

_DAYS = 14

_NAME = 19
"""Columns of a run's name: a row fits in 80."""


def contribution_lines(document: Mapping[str, Any], *, width: int) -> list[str]:
    """The lines of `p2prl me --json`'s object in at most `width` columns."""
    names = list(dict.fromkeys(part["name"] for part in document["runs"] if part["name"]))
    teams = list(dict.fromkeys(part["team"] for part in document["runs"] if part["team"]))
    of_teams = f", in the team {', '.join(teams)}" if teams else ""
    lines = [f"You are {', '.join(names)} on the board{of_teams}." if names else "This machine has no name yet."]
    lines += [
        "",
        f"{'run':<{_NAME}} {'worker':<8} {'groups':>7} {'passed':>6} {'tokens':>12} {'credit':>10}  last group",
    ]
    for part in document["runs"]:
        last = "–" if part["last_at"] is None else f"{age_text(document['time'] - part['last_at'])} ago"
        groups = part["groups"]
        verified, rejected = groups.get("verified", 0), groups.get("rejected", 0)
        passed = f"{verified / (verified + rejected):.0%}" if verified + rejected else "–"
        name = cleaned(part["run"])
        name = name if len(name) <= _NAME else name[: _NAME - 1] + "…"
        lines.append(
            f"{name:<{_NAME}} {part['seat']:<8} {verified:>7,} {passed:>6} {part['tokens']:>12,}"
            f" {credit(part['credit']):>10}  {last}"
        )
    sums = f"{document['groups_verified']:>7,} {'':>6} {document['tokens']:>12,} {credit(document['credit']):>10}"
    lines += [f"{'all':<{_NAME}} {'':<8} {sums}", "", *_days(document)]
    return [part.rstrip() for line in lines for part in wrapped(line, width)]


def _days(document: Mapping[str, Any]) -> list[str]:
    today = datetime.fromtimestamp(document["time"], UTC).date()
    values = [document["days"].get(str(today - timedelta(days=back)), 0) for back in reversed(range(_DAYS))]
    curve = sparkline([float(value) for value in values], _DAYS) if any(values) else "nothing credited"
    return [
        f"last {_DAYS} days  {curve}  {counted(sum(values), 'token')}, {values[-1]:,} of them today (UTC)",
        "Credit is checked forward work, as on the board. Groups in detail: p2prl receipts list RUN.",
    ]
