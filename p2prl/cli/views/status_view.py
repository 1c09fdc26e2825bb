"""Status of a worker or a learner, its owner's controls and limits, for people. Missing keys are left out."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from p2prl.cli.views.learner_view import evaluation_texts, forecast_text, warning_texts
from p2prl.cli.views.quantities import (
    energy_text,
    own_ledger_text,
    peers_text,
    rate_text,
    reach_text,
    reaches_learner,
    received_text,
    reward_text,
    state_text,
    version_text,
)
from p2prl.cli.views.receipt_advice import rejection_lines
from p2prl.errors import IdentityError
from p2prl.learner.training.parallel_config import ONE_PROCESS
from p2prl.plain_text import counted
from p2prl.protocol.identity import PeerId, public_key_of
from p2prl.quantity_text import size_text
from p2prl.scoreboard.display_names import display_name
from p2prl.time_text import age_text

_ORIGINS = {"default": "default", "file": "config.toml", "command": "p2prl limits", "option": "option of the start"}


def answer_line(answer: Mapping[str, Any], *, now: float) -> str:
    """A worker's state in one sentence. `answer` is a document of `p2prl.controls.messages.Answer`."""
    state = str(answer.get("state", ""))
    if state == "ending":
        return "ending: finished groups are kept"
    parts = [state if not answer.get("reason") else str(answer["reason"])]
    if state == "paused":
        until = answer.get("until")
        ends = "" if until is None or until < now else f"{time.strftime('%a %H:%M', time.localtime(until))} or "
        parts.append(f"until {ends}p2prl resume")
    if state in ("paused", "resting"):
        held = answer.get("engine_bytes")
        if not answer.get("followed", True):
            parts.append("frees its memory now")
        else:
            parts.append("its engine's memory is freed" if not held else f"its engine still holds {size_text(held)}")
        parts.append("relays weights" if answer.get("relays") else "off the network")
    return "; ".join(parts)


def limit_lines(limits: Mapping[str, Any], *, origin: bool = True) -> list[str]:
    """A line for each limit: its name, value and origin. Values are documents or `LimitShown`."""
    lines = []
    for name, shown in limits.items():
        value, came = (shown["value"], shown["origin"]) if isinstance(shown, Mapping) else (shown.value, shown.origin)
        lines.append(f"    {name:<14} {value:<26} {_ORIGINS.get(came, came) if origin else ''}".rstrip())
    return lines


def worker_lines(worker: Mapping[str, Any], *, now: float) -> list[str]:
    """A heading with the state of one worker or learner, then one line per quantity.

    `worker` is a status file's document with `running` and, for a worker, `seat`; `now` is seconds since 1970.
    """
    role, seat = worker.get("role", "worker"), worker.get("seat", "")
    heading = f"{worker.get('run', 'a run')}  {role}{f' {seat}' if seat else ''}  {_state(worker, now)}"
    rows = [("you are", _identity(worker)), *_ROWS.get(role, _worker)(worker)]
    if controls := worker.get("controls"):
        rows.append(("now", answer_line(controls, now=now)))
        rows += [("limit", line) for line in controls.get("unread", [])]
    rows.append(("memory", _memory(worker) if worker.get("running") else ""))
    return [heading, *(f"    {name:<9} {text}" for name, text in rows if text)]


def _state(worker: Mapping[str, Any], now: float) -> str:
    state = str(worker.get("state", ""))
    if worker.get("running"):
        if worker.get("role") == "volunteer" and "peers" in worker:
            state = state_text(state, in_reach=reaches_learner(worker))
        return state or "starting"
    ago = f" {age_text(now - worker['time'])} ago" if "time" in worker else ""
    if state in ("stopped", "finished"):
        return f"{state}{ago}"
    return f"not running, last report{ago}" if ago else "not running"


def _standby_learner(worker: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows of a standby learner."""
    if "step" not in worker:
        return [("holds", "nothing yet")]
    entries = counted(worker["ledger_height"], "ledger entry", "ledger entries")
    held = f"step {worker['step']:,}, {version_text(worker['version'])}, {entries}"
    return [("holds", held), ("fetched", size_text(worker["fetched_bytes"]))]


def _identity(worker: Mapping[str, Any]) -> str:
    peer = worker.get("peer", "")
    try:
        return f"{display_name(public_key_of(PeerId(peer)))} on the board, {peer}"
    except IdentityError:
        return ""


def _worker(worker: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows of a volunteer or a validator."""
    rows = [("policy", _policy(worker)), ("groups", _groups(worker))]
    if receipts := worker.get("own_receipts"):
        rows.append(("ledger", f"{own_ledger_text(receipts, worker.get('own_tokens', 0))}, signed by this key"))
    if worker.get("verified_tokens"):
        rows.append(("credit", counted(worker["verified_tokens"], "token")))
    rows.append(("energy", energy_text(worker.get("energy"))))
    if (reward := worker.get("reward_recent")) is not None:
        rows.append(("reward", f"{reward_text(reward)}, mean of your recent groups"))
    if reasons := worker.get("reasons"):
        rows += [("rejected", line) for line in rejection_lines(reasons)]
    if worker.get("weight_bytes_received"):
        sent = size_text(worker.get("weight_bytes_sent", 0))
        rows.append(("weights", f"{received_text(worker)}; {sent} sent to others"))
    if worker.get("running") and "peers" in worker and worker.get("controls", {}).get("relays", True):
        rows.append(("peers", peers_text(worker["peers"])))
        rows.append(("reach", reach_text(str(worker.get("reach", "")))))
    return rows


def _ranks_text(worker: Mapping[str, Any]) -> str:
    """The processes that share a learner's updates."""
    hosts = f" on {worker['hosts']:,} hosts" if worker.get("hosts", 1) > 1 else ""
    return f"{worker['ranks']:,}{hosts}, by plan {worker['plan']}" if "ranks" in worker else f"by plan {worker['plan']}"


def _learner(worker: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows of a learner."""
    if "step" not in worker:
        return [("updates", "none yet")]
    target = f" of {worker['target_updates']:,}" if worker.get("target_updates") else ""
    rows = [("updates", f"{worker['step']:,.0f}{target}"), ("policy", version_text(worker.get("version", -1)))]
    if "publishing" in worker:
        rows.append(("publishing", f"the next version, {worker['publishing']:.0%} encoded"))
    if worker.get("plan", ONE_PROCESS) != ONE_PROCESS:
        rows.append(("ranks", _ranks_text(worker)))
    if "reward" in worker:
        rows.append(("reward", f"{worker['reward']:.3f}, mean of the newest batch"))
    if "staleness_p50" in worker:
        median, largest = worker["staleness_p50"], worker.get("staleness_max", worker["staleness_p50"])
        rows.append(("staleness", f"median {median:.0f}, largest {counted(largest, 'update')}"))
    if lost := lost_text(worker):
        rows.append(("dropped", lost))
    if "peers" in worker:
        volunteers = counted(worker["peers"], "volunteer")
        rows.append(("batch", f"{counted(worker.get('groups', 0), 'group')} of {volunteers}"))
    rows.append(("at work", forecast_text(worker)))
    rows += [("measured", text) for text in evaluation_texts(worker)]
    rows += [("warning", text) for text in warning_texts(worker)]
    return rows


def lost_text(worker: Mapping[str, Any]) -> str:
    """What was dropped for its age, and how it differs from what was trained on; empty when nothing was."""
    if not worker.get("lost/groups"):
        return ""
    text = f"{counted(worker['lost/groups'], 'group')} too old, {worker.get('lost/share', 0.0):.0%} of the newest work"
    if "lost/reward_difference" not in worker:
        return text
    return (
        f"{text}: completions {worker.get('lost/tokens_ratio', 1.0):.2f} times as long, sampled in"
        f" {worker.get('lost/seconds_ratio', 1.0):.1f} times the time, reward"
        f" {worker['lost/reward_difference']:+.2f}"
    )


def _policy(worker: Mapping[str, Any]) -> str:
    version = worker.get("version", -1)
    if version < 0 and worker.get("controls", {}).get("state") in ("paused", "resting"):
        return "none in memory while it rests"
    if version < 0 and worker.get("resting") and not worker.get("running"):
        return "none in memory: it rested when it ended"
    text = version_text(version)
    if (announced := worker.get("announced_version", -1)) > version:
        text += f", v{announced} is out"
    if worker.get("running") and worker.get("tokens_per_s", 0.0) >= 1:
        text += f"; {rate_text(worker['tokens_per_s'])}"
    return text


def _groups(worker: Mapping[str, Any]) -> str:
    if "groups_replayed" in worker:
        return (
            f"{worker['groups_replayed']:,} replayed of {worker.get('groups_seen', 0):,} seen: "
            f"{worker.get('verdicts_passed', 0):,} passed, {worker.get('verdicts_failed', 0):,} failed; "
            f"{worker.get('groups_waiting', 0):,} waiting"
        )
    groups = worker.get("groups", {})
    waiting = groups.get("generated", 0) + groups.get("delivered", 0)
    text = f"{groups.get('verified', 0):,} verified, {waiting:,} waiting, {groups.get('rejected', 0):,} rejected"
    return text + (f", {groups['expired']:,} too old" if groups.get("expired") else "")


def _memory(worker: Mapping[str, Any]) -> str:
    """What its processes hold now, measured: the figure of a run's introduction is an estimate of them all."""
    own, network = worker.get("resident_bytes", 0), worker.get("network_resident_bytes", 0)
    network += worker.get("network_daemon_bytes", 0)
    parts = f" ({size_text(own)} of its own, {size_text(network)} of the network)" if network else ""
    return f"{size_text(own + network)} measured{parts}" if own else ""


_ROWS = {"learner": _learner, "standby learner": _standby_learner}
"""What is shown of a role; of any other what is shown of workers."""
