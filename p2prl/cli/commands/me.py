"""`p2prl me`: contribution of this home over all runs, from its own spools. It needs no network."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from p2prl.cli.options import AsJson, Home
from p2prl.cli.views.console import emit, output_width, say
from p2prl.cli.views.quantities import cost_text, kwh_text
from p2prl.cli.views.worker_screen import sparkline
from p2prl.client.own_groups import OwnGroups
from p2prl.client.spool import SpoolState
from p2prl.config.own_runs import OwnRun, runs_here, spools_of
from p2prl.config.owner_files import load_delegation, load_memberships
from p2prl.config.owner_limits import load_limits
from p2prl.config.run_lists import load_lists
from p2prl.config.worker_folder import default_home, read_status
from p2prl.controls.energy import EnergyAccount, tokens_per_kwh
from p2prl.controls.limits import figures
from p2prl.controls.owner_values import Price
from p2prl.errors import IdentityError, MachineError
from p2prl.plain_text import cleaned, counted, wrapped
from p2prl.protocol.identity import PeerId, peer_id_of, public_key_of
from p2prl.quantity_text import credit
from p2prl.scoreboard.display_names import display_name
from p2prl.scoreboard.ledger.credit import credit_of
from p2prl.time_text import age_text


def me(home: Home = None, as_json: AsJson = False) -> None:
    """Show what this machine has contributed to all its runs."""
    base = home or default_home()
    runs = [run for run in runs_here(base) if run.spool.is_file()]
    parts: list[dict[str, object]] = []
    days: dict[str, int] = {}
    if runs:
        with spools_of(runs) as spools:
            for run, groups in spools:
                parts.append(run_part(run, groups))
                for day, tokens in groups.credited_by_day().items():
                    days[day] = days.get(day, 0) + tokens
    price = figures(load_limits(base)).price
    energy = energy_document(parts, price)
    pages = _pages(runs, sorted(load_lists(base).ids("indexes")))
    sums = {**_sums(parts), **energy, "pages": pages, "time": time.time()}
    document = {"runs": parts, "days": dict(sorted(days.items())), **sums}
    if as_json:
        emit(document)
    elif not parts:
        say(f"No run has work of this machine under {base} yet. Start with:  p2prl join LINK")
    else:
        for line in contribution_lines(document, width=output_width() or sys.maxsize):
            sys.stdout.write(f"{line}\n")


def run_part(run: OwnRun, groups: OwnGroups) -> dict[str, object]:
    """One worker's part in one run, as a JSON value."""
    counts: dict[str, int] = {}
    for (state, _), count in groups.counts().items():
        counts[state] = counts.get(state, 0) + count
    tokens = sum(groups.credited_by_day().values())
    newest = groups.newest(1)
    status = read_status(run.directory / "status.json")
    owner, team = _owner_and_team(run)
    return {
        "run": run.manifest.name,
        "goal": run.manifest.goal,
        "seat": run.seat,
        "name": "" if owner is None else display_name(owner),
        "team": team,
        "groups": counts,
        "tokens": tokens,
        "credit": credit_of(tokens, run.manifest.parameters),
        "last_at": newest[0].created if newest else None,
        "weight_bytes_sent": status.get("weight_bytes_sent", 0),
        **_energy_of(status.get("energy")),
    }


def _energy_of(energy: object) -> dict[str, object]:
    """What this worker's machine has measured in all its sessions in the run; empty where that is nothing."""
    account = EnergyAccount.going_on(energy)
    return {"kwh": account.earlier_kwh, "kwh_tokens": account.earlier_tokens} if account.earlier_kwh else {}


def _sums(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "groups_verified": sum(part["groups"].get(SpoolState.VERIFIED, 0) for part in parts),
        "tokens": sum(part["tokens"] for part in parts),
        "credit": sum(part["credit"] for part in parts),
    }


def energy_document(parts: Sequence[Mapping[str, Any]], price: Price) -> dict[str, Any]:
    """Energy over all workers and runs, as far as it was measured; empty where it was not."""
    kwh, tokens = sum(part.get("kwh", 0.0) for part in parts), sum(part.get("kwh_tokens", 0) for part in parts)
    if not kwh:
        return {}
    found: dict[str, Any] = {"kwh": round(kwh, 6), "tokens_per_kwh": tokens_per_kwh(tokens, kwh)}
    if price.amount:
        found |= {"cost": round(kwh * price.amount, 4), "currency": price.currency}
    return {"energy": found}


def _energy_lines(document: Mapping[str, Any]) -> list[str]:
    energy = document.get("energy")
    if energy is None:
        return []
    rate, cost = energy["tokens_per_kwh"], energy.get("cost")
    said = [f"{kwh_text(energy['kwh'])} measured while it worked"]
    said += [] if cost is None else [f"{cost_text(cost, energy)} at the price you set now"]
    said += [] if rate is None else [f"{rate:,} verified tokens a kWh"]
    return [f"energy  {'; '.join(said)}"]


def _owner_and_team(run: OwnRun) -> tuple[bytes | None, str]:
    """The key that this worker's work counts for, its owner's or its own, and the name of its team."""
    try:
        key = public_key_of(PeerId(str(read_status(run.directory / "status.json").get("peer", ""))))
        delegation = load_delegation(run.directory.parent, key)
        owner = key if delegation is None else delegation.owner
        membership = load_memberships(run.directory.parent.parent).get(owner)
    except (IdentityError, MachineError):
        return None, ""
    team = None if membership is None else membership.team
    return owner, "" if team is None else team.name


def _pages(runs: Sequence[OwnRun], indexes: Sequence[str]) -> list[str]:
    """Where the indexes that the owner of this machine trusts show what it gave over all runs."""
    owners = dict.fromkeys(owner for run in runs if (owner := _owner_and_team(run)[0]) is not None)
    return [f"{url.rstrip('/')}/people/{peer_id_of(owner)}" for url in indexes for owner in owners]


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
    lines += [f"{'all':<{_NAME}} {'':<8} {sums}", *_energy_lines(document), "", *_days(document)]
    if document["pages"]:
        lines.append("Over all runs, as an index that you trust counts them:")
    return [*(part.rstrip() for line in lines for part in wrapped(line, width)), *document["pages"]]


def _days(document: Mapping[str, Any]) -> list[str]:
    today = datetime.fromtimestamp(document["time"], UTC).date()
    values = [document["days"].get(str(today - timedelta(days=back)), 0) for back in reversed(range(_DAYS))]
    curve = sparkline([float(value) for value in values], _DAYS) if any(values) else "nothing credited"
    return [
        f"last {_DAYS} days  {curve}  {counted(sum(values), 'token')}, {values[-1]:,} of them today (UTC)",
        "Credit is checked forward work, as on the board. Groups in detail: p2prl receipts list RUN.",
    ]
