"""How `p2prl status` words a role's status file for a person. Rendering only; what a file does not say is left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from p2prl.cli.worker_views import peers_text, version_text
from p2prl.errors import IdentityError
from p2prl.protocol.identity import PeerId, public_key_of
from p2prl.scoreboard.display_names import display_name

_MINUTE_S, _HOUR_S, _DAY_S = 60.0, 3600.0, 86_400.0


def worker_lines(worker: Mapping[str, Any], *, now: float) -> list[str]:
    """One worker or learner: a heading with what it does, then a line for each thing worth knowing.

    `worker` is a status file's document with `running` and, for a worker, `seat`; `now` is seconds since 1970.
    """
    role, seat = worker.get("role", "worker"), worker.get("seat", "")
    heading = f"{worker.get('run', 'a run')}  {role}{f' {seat}' if seat else ''}  {_state(worker, now)}"
    rows = [("you are", _identity(worker)), *(_learner(worker) if role == "learner" else _worker(worker))]
    rows.append(("memory", _memory(worker) if worker.get("running") else ""))
    return [heading, *(f"    {name:<9} {text}" for name, text in rows if text)]


def age_text(seconds: float) -> str:
    """A span of time in its largest unit."""
    for unit_s, name in ((_DAY_S, "d"), (_HOUR_S, "h"), (_MINUTE_S, "min")):
        if seconds >= unit_s:
            return f"{seconds / unit_s:.0f} {name}"
    return f"{max(0.0, seconds):.0f} s"


def _state(worker: Mapping[str, Any], now: float) -> str:
    state = str(worker.get("state", ""))
    if worker.get("running"):
        return state or "starting"
    ago = f" {age_text(now - worker['time'])} ago" if "time" in worker else ""
    return (
        f"{state}{ago}"
        if state in ("stopped", "finished")
        else f"not running, {f'last heard of{ago}' if ago else 'never heard of'}"
    )


def _identity(worker: Mapping[str, Any]) -> str:
    peer = worker.get("peer", "")
    try:
        return f"{display_name(public_key_of(PeerId(peer)))} on the board, {peer}"
    except IdentityError:
        return ""


def _worker(worker: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A volunteer's or a validator's figures."""
    rows = [("policy", _policy(worker)), ("groups", _groups(worker))]
    if (reward := worker.get("reward_recent")) is not None:
        rows.append(("reward", f"{reward:.2f}, recent groups of yours"))
    if reasons := worker.get("reasons"):
        rows.append(("refused", ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))))
    received = worker.get("weight_bytes_received", 0)
    if received:
        share = worker.get("weight_bytes_from_peers", 0) / received
        sent = worker.get("weight_bytes_sent", 0)
        text = f"{received / 1e6:,.1f} MB received, {share:.0%} from volunteers; {sent / 1e6:,.1f} MB passed on"
        rows.append(("weights", text))
    if worker.get("running") and "peers" in worker:
        rows.append(("peers", peers_text(worker["peers"])))
    return rows


def _learner(worker: Mapping[str, Any]) -> list[tuple[str, str]]:
    if "step" not in worker:
        return [("updates", "none yet")]
    rows = [("updates", f"{worker['step']:,.0f}"), ("policy", version_text(worker.get("version", -1)))]
    if "reward" in worker:
        rows.append(("reward", f"{worker['reward']:.3f}, the newest batch's mean"))
    if "staleness_p50" in worker:
        middle, most = worker["staleness_p50"], worker.get("staleness_max", worker["staleness_p50"])
        rows.append(("staleness", f"median {middle:.0f}, largest {most:.0f} updates"))
    if "peers" in worker:
        rows.append(("batch", f"{worker.get('groups', 0)} groups of {worker['peers']} volunteers"))
    return rows


def _policy(worker: Mapping[str, Any]) -> str:
    version = worker.get("version", -1)
    text = version_text(version)
    if (announced := worker.get("announced_version", -1)) > version:
        text += f", v{announced} is out"
    if worker.get("running") and worker.get("tokens_per_s", 0.0) >= 1:
        text += f"; {worker['tokens_per_s']:,.0f} tokens/s"
    return text


def _groups(worker: Mapping[str, Any]) -> str:
    if "groups_replayed" in worker:
        return (
            f"{worker['groups_replayed']:,} replayed of {worker.get('groups_seen', 0):,} heard of: "
            f"{worker.get('verdicts_passed', 0):,} passed, {worker.get('verdicts_failed', 0):,} failed; "
            f"{worker.get('groups_waiting', 0):,} waiting"
        )
    groups = worker.get("groups", {})
    waiting = groups.get("generated", 0) + groups.get("delivered", 0)
    text = f"{groups.get('verified', 0):,} verified, {waiting:,} waiting, {groups.get('rejected', 0):,} rejected"
    return text + (f", {groups['expired']:,} too old" if groups.get("expired") else "")


def _memory(worker: Mapping[str, Any]) -> str:
    own, network = worker.get("resident_bytes", 0), worker.get("network_resident_bytes", 0)
    network += worker.get("network_daemon_bytes", 0)
    return f"{own / 1e6:,.0f} MB" + (f", and {network / 1e6:,.0f} MB for the network" if network else "") if own else ""
