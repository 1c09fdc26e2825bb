"""Contribution of this home over all runs, from its own spools: it needs no network."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from p2prl.cli.commands.own_spools import spools_of
from p2prl.cli.role_files import read_status
from p2prl.cli.views.console import emit, output_width, say
from p2prl.cli.views.contribution_view import contribution_lines
from p2prl.client.own_groups import OwnGroups
from p2prl.client.spool import SpoolState
from p2prl.config.own_runs import OwnRun, runs_here
from p2prl.config.owner_files import load_delegation
from p2prl.config.team_files import load_memberships
from p2prl.config.worker_folder import default_home
from p2prl.errors import IdentityError, MachineError
from p2prl.protocol.identity import PeerId, public_key_of
from p2prl.scoreboard.display_names import display_name
from p2prl.scoreboard.ledger.leaderboard_totals import credit_of


def contribution_command(*, home: Path | None, as_json: bool) -> None:
    """Print each run's part and the sum."""
    base = home or default_home()
    runs = [run for run in runs_here(base) if run.spool.is_file()]
    parts: list[dict[str, Any]] = []
    days: dict[str, int] = {}
    if runs:
        with spools_of(runs) as spools:
            for run, groups in spools:
                parts.append(run_part(run, groups))
                for day, tokens in groups.credited_by_day().items():
                    days[day] = days.get(day, 0) + tokens
    document = {"runs": parts, "days": dict(sorted(days.items())), **_sums(parts), "time": time.time()}
    if as_json:
        emit(document)
    elif not parts:
        say(f"No run has work of this machine under {base} yet. Start with:  p2prl join LINK")
    else:
        for line in contribution_lines(document, width=output_width() or sys.maxsize):
            sys.stdout.write(f"{line}\n")


def run_part(run: OwnRun, groups: OwnGroups) -> dict[str, Any]:
    """One worker's part in one run, as a JSON value."""
    counts: dict[str, int] = {}
    for (state, _), count in groups.counts().items():
        counts[state] = counts.get(state, 0) + count
    tokens = sum(groups.credited_by_day().values())
    newest = groups.newest(1)
    status = read_status(run.directory / "status.json")
    name, team = _shown_names(run, str(status.get("peer", "")))
    return {
        "run": run.manifest.name,
        "goal": run.manifest.goal,
        "seat": run.seat,
        "name": name,
        "team": team,
        "groups": counts,
        "tokens": tokens,
        "credit": credit_of(tokens, run.manifest.parameters),
        "last_at": newest[0].created if newest else None,
        "weight_bytes_sent": status.get("weight_bytes_sent", 0),
    }


def _sums(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "groups_verified": sum(part["groups"].get(SpoolState.VERIFIED, 0) for part in parts),
        "tokens": sum(part["tokens"] for part in parts),
        "credit": sum(part["credit"] for part in parts),
    }


def _shown_names(run: OwnRun, peer: str) -> tuple[str, str]:
    """The row of the board that this worker's work counts for, its owner's or its own, and the name of its team."""
    try:
        key = public_key_of(PeerId(peer))
        delegation = load_delegation(run.directory.parent, key)
        owner = key if delegation is None else delegation.owner
        membership = load_memberships(run.directory.parent.parent).get(owner)
    except (IdentityError, MachineError):
        return "", ""
    team = None if membership is None else membership.team
    return display_name(owner), "" if team is None else team.name
