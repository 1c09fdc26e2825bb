"""What a volunteer or validator shows of itself: how it introduces its run, and how far it is. Rendering only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table

from p2prl.config.requirements import Requirements, size_text
from p2prl.protocol.identity import Identity
from p2prl.protocol.manifests import RunManifest
from p2prl.scoreboard.display_names import display_name

if TYPE_CHECKING:
    from p2prl.client.progress import Progress
    from p2prl.validator.service import Audit

_RATE_MEMORY_S = 15.0
"""Seconds after which a shown rate has forgotten two thirds of what it was."""

_NONE = "–"
_NO_WEIGHTS = "no weights yet"


class SmoothRate:
    """A rate that is measured batch by batch, calm enough to read: its exponential mean over the last seconds."""

    def __init__(self) -> None:
        self._mean = 0.0
        self._at = 0.0

    def update(self, rate: float, now: float) -> float:
        """The mean after `rate` has stood until `now` (seconds); 0 until there was any."""
        if self._mean <= 0.0:
            self._mean = rate
        else:
            self._mean += (rate - self._mean) * -math.expm1(-max(0.0, now - self._at) / _RATE_MEMORY_S)
        self._at = now
        return self._mean


def volunteer_introduction(
    manifest: RunManifest, needs: Requirements, identity: Identity, seat: str, device: str
) -> list[str]:
    """What a person should know before their machine volunteers."""
    return [
        *_run_lines(manifest, needs),
        f"  You do    sample answers on {device}. Nobody sends code to your machine.",
        "  Leaves    generated tokens, their log-probs and timing, signed by the key below. No host name, no files.",
        *_identity_lines(identity, seat),
    ]


def validator_introduction(
    manifest: RunManifest, needs: Requirements, identity: Identity, seat: str, device: str, rate: float
) -> list[str]:
    """What a person should know before their machine validates."""
    return [
        *_run_lines(manifest, needs),
        f"  You do    replay {rate:.0%} of the volunteers' groups on {device} to see whether their policy wrote them.",
        "            Nobody sends code to your machine.",
        "  Leaves    signed verdicts: which group, whose, passed or failed and by how much. No host name, no files.",
        *_identity_lines(identity, seat),
    ]


def progress_line(progress: Progress, tokens_per_s: float) -> str:
    """A volunteer's state in a line."""
    groups = progress.groups
    version = version_text(progress.version)
    if progress.announced_version > progress.version >= 0:
        _, held, total = progress.fetching
        version += f" (v{progress.announced_version} {held}/{total} chunks)" if total else ""
    return (
        f"{version}  {progress.state}  verified {groups.get('verified', 0)}  waiting {_waiting(progress)}"
        f"  rejected {groups.get('rejected', 0)}  reward {_reward(progress)}"
        f"  {_rate(tokens_per_s)}  peers {sum(progress.peers.values())}"
    )


def progress_panel(name: str, identity: Identity, progress: Progress, tokens_per_s: float) -> RenderableType:
    """A volunteer's state, redrawn in place."""
    table = Table.grid(padding=(0, 2))
    table.add_row(name, f"{display_name(identity.public_key)} ({identity.peer_id[-8:]})   {progress.state}")
    policy = version_text(progress.version)
    if progress.announced_version > progress.version:
        policy += f", v{progress.announced_version} is out"
    table.add_row("policy", f"{policy}   {_rate(tokens_per_s)}")
    table.add_row("peers", peers_text(progress.peers))
    groups = progress.groups
    verified, rejected = groups.get("verified", 0), groups.get("rejected", 0)
    table.add_row("groups", f"{verified} verified   {_waiting(progress)} waiting   {rejected} rejected")
    table.add_row("reward", f"{_reward(progress)} (recent groups of yours)")
    received = progress.weight_bytes_from_learner + progress.weight_bytes_from_peers
    share = f", {progress.weight_bytes_from_peers / received:.0%} from volunteers" if received else ""
    table.add_row("weights", f"{received / 1e6:.1f} MB received{share}")
    return table


def audit_line(audit: Audit) -> str:
    """A validator's state in a line."""
    return (
        f"{version_text(audit.version)}  seen {audit.seen}  replayed {audit.replayed}  passed {audit.passed}"
        f"  failed {audit.failed}  waiting {audit.waiting}"
    )


def peers_text(peers: Mapping[str, int]) -> str:
    """Neighbours by role, in words."""
    counted = (f"{count} {role}{'' if count == 1 else 's'}" for role, count in peers.items())
    return ", ".join(counted) or "none yet"


def _run_lines(manifest: RunManifest, needs: Requirements) -> list[str]:
    tasks = ", ".join(share.task for share in manifest.tasks)
    fetched, version = size_text(needs.download_bytes), size_text(needs.weights_bytes)
    disk, memory = size_text(needs.disk_bytes), size_text(needs.memory_bytes)
    return [
        f"run {manifest.name} (manifest verified)",
        f"  Goal      {manifest.goal}",
        f"  Model     {manifest.base_model}, {manifest.parameters:,} parameters; task {tasks}",
        f"  Licence   {manifest.licence}, of the weights that come of it",
        f"  Content   {manifest.content_policy}",
        f"  Download  {fetched} now, up to {version} for each newer policy",
        f"  Takes     {disk} of disk and from {memory} of memory, roughly",
    ]


def _identity_lines(identity: Identity, seat: str) -> list[str]:
    return [
        f"  You are   {display_name(identity.public_key)} on the board, {identity.peer_id}",
        f"  Your key  write its words down: p2prl key backup --seat {seat}",
    ]


def version_text(version: int) -> str:
    """A policy version; −1 is none."""
    return _NO_WEIGHTS if version < 0 else f"v{version}"


def _waiting(progress: Progress) -> int:
    return progress.groups.get("generated", 0) + progress.groups.get("delivered", 0)


def _reward(progress: Progress) -> str:
    return _NONE if progress.reward_recent is None else f"{progress.reward_recent:.2f}"


def _rate(tokens_per_s: float) -> str:
    return f"{tokens_per_s:,.0f} tok/s" if tokens_per_s >= 0.5 else f"{_NONE} tok/s"
