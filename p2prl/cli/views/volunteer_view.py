"""Panel, progress line and startup phases of a running volunteer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table

from p2prl.cli.views.quantities import (
    peers_text,
    rate_text,
    reach_text,
    received_text,
    reward_text,
    share_text,
    state_text,
    version_text,
)
from p2prl.cli.views.rejections import rejection_lines
from p2prl.config.requirements import size_text
from p2prl.protocol.identity import Identity
from p2prl.scoreboard.display_names import display_name
from p2prl.scoreboard.ledger.leaderboard_totals import ESCROW_GROUPS

if TYPE_CHECKING:
    from p2prl.client.progress import Progress

_RATE_MEMORY_S = 15.0
"""Time constant of the displayed rate, seconds."""

HOW_TO_STOP = "Ctrl-C finishes the current groups, twice stops now; finished groups are kept"

HOW_TO_PAUSE = "p2prl pause frees the memory at once, p2prl resume goes on"


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
            return "finding the run", f"{linked} peers answered" if linked else ""
        case "fetching the run's files":
            return "downloading the run's files", share_text(*progress.files)
        case "waiting for the first weights":
            _, held, total = progress.fetching
            return "downloading the weights", f"{held:,} of {total:,} chunks" if total else "waiting for a peer"
        case "sampling" if progress.tokens_per_s <= 0.0:
            return "sampling the first groups", ""
    return None


def progress_line(progress: Progress, tokens_per_s: float) -> str:
    """A volunteer's state in one line."""
    groups = progress.groups
    version = version_text(progress.version)
    if progress.announced_version > progress.version >= 0:
        _, held, total = progress.fetching
        version += f" (v{progress.announced_version} {held}/{total} chunks)" if total else ""
    # Answers to rows of data are scored elsewhere: no reward is no news.
    reward = "" if progress.reward_recent is None else f"  reward {reward_text(progress.reward_recent)}"
    reach = f"  {progress.reach}" if progress.reach and progress.reach != "local" else ""
    return (
        f"{version}  {_state(progress)}  verified {groups.get('verified', 0):,}"
        f" ({progress.verified_tokens:,} tokens)  waiting {_waiting(progress):,}"
        f"  rejected {groups.get('rejected', 0):,}{reward}"
        f"  {rate_text(tokens_per_s)}  peers {sum(progress.peers.values())}{reach}"
    )


def progress_panel(name: str, identity: Identity, progress: Progress, tokens_per_s: float) -> RenderableType:
    """A volunteer's state, redrawn in place."""
    table = Table.grid(padding=(0, 2))
    table.add_row(name, f"{display_name(identity.public_key)} ({identity.peer_id[-8:]})")
    table.add_row("now", f"{_state(progress)}   {rate_text(tokens_per_s)}")
    table.add_row("policy", _policy(progress))
    groups = progress.groups
    verified, rejected = groups.get("verified", 0), groups.get("rejected", 0)
    table.add_row("credit", f"{verified:,} groups verified, {progress.verified_tokens:,} tokens credited")
    if verified:
        escrow = f"the newest {min(verified, ESCROW_GROUPS):,} groups, until more are verified or the run ends"
        table.add_row("in escrow", escrow)
    table.add_row("groups", f"{_waiting(progress):,} waiting for a verdict   {rejected:,} rejected")
    for line in rejection_lines(progress.reasons):
        table.add_row("rejected", line)
    if progress.reward_recent is not None:
        table.add_row("reward", f"{reward_text(progress.reward_recent)}, mean of your recent groups")
    table.add_row("peers", peers_text(progress.peers))
    if reach := reach_text(progress.reach):
        table.add_row("reach", reach)
    received = received_text(progress.weight_bytes_from_learner, progress.weight_bytes_from_peers)
    table.add_row("weights", f"{received}; {size_text(progress.weight_bytes_sent)} sent to others")
    table.add_row("stop", HOW_TO_STOP)
    table.add_row("pause", HOW_TO_PAUSE)
    return table


def _state(progress: Progress) -> str:
    return state_text(progress.state, progress.peers)


def _policy(progress: Progress) -> str:
    text = version_text(progress.version)
    if progress.announced_version > progress.version:
        _, held, total = progress.fetching
        text += f", v{progress.announced_version} is out" + (f" ({held:,} of {total:,} chunks)" if total else "")
    return text + (f"   the run is at learner step {progress.step:,}" if progress.step >= 0 else "")


def _waiting(progress: Progress) -> int:
    return progress.groups.get("generated", 0) + progress.groups.get("delivered", 0)
