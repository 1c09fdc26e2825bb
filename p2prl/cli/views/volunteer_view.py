"""Progress line, startup phases, status document and events of a running volunteer."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from p2prl.cli.views.quantities import rate_text, reward_text, share_text, state_text, version_text
from p2prl.cli.views.worker_screen import is_offline
from p2prl.plain_text import counted

if TYPE_CHECKING:
    from p2prl.client.progress import Progress
    from p2prl.client.run_watch import RunView


_RATE_MEMORY_S = 15.0
"""Time constant of the displayed rate, seconds."""


class SmoothRate:
    """Exponential moving average of a rate measured per batch, smooth enough to read."""

    def __init__(self) -> None:
        self._mean = 0.0
        self._at = 0.0

    def update(self, rate: float, now: float) -> float:
        """Add `rate`, measured up to `now` (seconds), and return the average; 0 before the first measurement."""
        if self._mean <= 0.0:
            self._mean = rate
        else:
            self._mean += (rate - self._mean) * -math.expm1(-max(0.0, now - self._at) / _RATE_MEMORY_S)
        self._at = now
        return self._mean


def startup_phase(progress: Progress) -> tuple[str, str] | None:
    """Name and detail of the startup phase, or None once a group was sampled or the run is over."""
    linked = sum(progress.peers.values())
    match progress.state:
        case "looking for the run":
            return "finding the run", f"{counted(linked, 'peer')} answered" if linked else ""
        case "fetching the run's files":
            return "downloading the run's files", share_text(*progress.files)
        case "waiting for the first weights":
            _, held, total = progress.fetching
            return (
                "downloading the weights",
                f"{held:,} of {counted(total, 'chunk')}" if total else "waiting for a peer",
            )
        case "sampling" if progress.tokens_per_s <= 0.0:
            return "sampling the first groups", ""
    return None


def progress_line(progress: Progress, tokens_per_s: float) -> str:
    """A volunteer's state in one line."""
    groups = progress.groups
    version = version_text(progress.version)
    if progress.announced_version > progress.version >= 0:
        _, held, total = progress.fetching
        version += f" (v{progress.announced_version} {held}/{counted(total, 'chunk')})" if total else ""
    # Answers to rows of data are scored elsewhere: no reward is no news.
    reward = "" if progress.reward_recent is None else f"  reward {reward_text(progress.reward_recent)}"
    reach = f"  {progress.reach}" if progress.reach and progress.reach != "local" else ""
    return (
        f"{version}  {_state(progress)}  verified {groups.get('verified', 0):,}"
        f" ({counted(progress.verified_tokens, 'token')})  waiting {_waiting(progress):,}"
        f"  rejected {groups.get('rejected', 0):,}{reward}"
        f"  {rate_text(tokens_per_s)}  peers {sum(progress.peers.values())}{reach}"
    )


def _state(progress: Progress) -> str:
    in_reach = bool(progress.peers.get("learner")) or progress.hears_learner
    return state_text(progress.state, in_reach=in_reach)


def _waiting(progress: Progress) -> int:
    return progress.groups.get("generated", 0) + progress.groups.get("delivered", 0)


def progress_document(progress: Progress) -> dict[str, object]:
    """A volunteer's part of its status file and of `--json`."""
    received = progress.weight_bytes_from_learner + progress.weight_bytes_from_peers
    return {
        "state": progress.state,
        "version": progress.version,
        "announced_version": progress.announced_version,
        "learner_step": progress.step,
        "peers": dict(progress.peers),
        "reach": progress.reach,
        "resting": progress.resting,
        "fetching": list(progress.fetching[1:]),
        "groups": dict(progress.groups),
        "reasons": dict(progress.reasons),
        "verified_tokens": progress.verified_tokens,
        "tokens_per_s": round(progress.tokens_per_s, 1),
        "reward_recent": None if progress.reward_recent is None else round(progress.reward_recent, 4),
        "weight_bytes_received": received,
        "weight_bytes_from_learner": progress.weight_bytes_from_learner,
        "weight_bytes_from_peers": progress.weight_bytes_from_peers,
        "weight_bytes_over_circuits": progress.weight_bytes_over_circuits,
        "hears_learner": progress.hears_learner,
        "weight_bytes_sent": progress.weight_bytes_sent,
        "patch_bytes": progress.patch_bytes,
        "whole_bytes": progress.whole_bytes,
        "brought_bytes": progress.brought_bytes,
        "spared_bytes": progress.spared_bytes,
        "network_resident_bytes": progress.network_resident_bytes,
        "network_daemon_bytes": progress.network_daemon_bytes,
        "run_progress": run_document(progress.run),
    }


def run_document(run: RunView) -> dict[str, object]:
    """The run as this machine sees it, as a JSON value."""
    return {
        "step": run.step,
        "curve": [[step, round(reward, 4)] for step, reward in run.curve],
        "rank": None,  # the board's alone: it has the whole ledger
        "machines": run.machines,
        "since": run.since,
        "next_share": None if run.next_share is None else round(run.next_share, 4),
        "next_s": None if run.next_s is None else round(run.next_s, 1),
        "cut_off_since": run.cut_off_since,
    }


_ENDS = ("verified", "rejected", "expired")
"""States of a group that are final."""


class EventLines:
    """Writes an event when something changes; nothing at all unless asked."""

    def __init__(self, *, asked: bool, now: Callable[[], float] = time.time) -> None:
        self._asked = asked
        self._now = now
        self._before: Mapping[str, Any] = {}

    def phase(self, name: str, detail: str = "") -> None:
        """A phase of the start begins."""
        self._write("phase", name=name, detail=detail)

    def notice(self, text: str) -> None:
        """The owner was told something."""
        self._write("notice", text=text)

    def progress(self, document: Mapping[str, Any]) -> None:
        """The newest status document: changes of state, version, links and judged groups become events."""
        before, self._before = self._before, document
        if document["state"] != before.get("state"):
            self._write("state", state=document["state"], resting=document["resting"])
        if document["version"] != before.get("version", -1):
            self._write("version", version=document["version"], learner_step=document["learner_step"])
        if before and is_offline(document) != is_offline(before):
            self._write("offline" if is_offline(document) else "online", peers=document["peers"])
        groups, earlier = document["groups"], before.get("groups", {})
        if before and any(groups.get(state, 0) > earlier.get(state, 0) for state in _ENDS):
            self._write(
                "judged",
                groups=dict(groups),
                reasons=document["reasons"],
                verified_tokens=document["verified_tokens"],
            )

    def _write(self, event: str, **values: Any) -> None:
        if self._asked:
            line = json.dumps({"event": event, "time": round(self._now(), 3), **values}, sort_keys=True)
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
