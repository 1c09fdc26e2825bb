"""The demo's panel, its progress line and its summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from p2prl.cli.views.quantities import downloads_line, received_text, version_text
from p2prl.plain_text import counted
from p2prl.quantity_text import size_text

_BAR_COLUMNS = 30
_RECENT_UPDATES = 10


def demo_panel(
    statuses: Sequence[tuple[str, Mapping[str, Any]]], metrics: Sequence[Mapping[str, Any]], updates: int
) -> RenderableType:
    """The learner's progress toward `updates`, then one row per worker (name, status)."""
    table = Table.grid(padding=(0, 2))
    if metrics:
        last, recent = metrics[-1], metrics[-_RECENT_UPDATES:]
        done = int(last["step"])
        reward = sum(m["reward"] for m in recent) / len(recent)
        bar = f"[{'#' * (_BAR_COLUMNS * done // updates):<{_BAR_COLUMNS}}]".replace("[", "\\[")
        table.add_row("learner", f"{bar} update {done}/{updates}   policy v{last['version']}")
        table.add_row(
            "reward", f"{reward:.3f} (mean of {counted(len(recent), 'update')}), from {metrics[0]['reward']:.3f}"
        )
        table.add_row("staleness", f"p50 {last['staleness_p50']:.0f}   max {counted(last['staleness_max'], 'update')}")
    else:
        table.add_row("learner", "waiting for the first groups")
    for name, status in statuses:
        if status:
            table.add_row(name, _worker(status))
    return table


def demo_line(metrics: Sequence[Mapping[str, Any]], updates: int) -> str:
    """The newest update in one line."""
    if not metrics:
        return "waiting for the first groups"
    last = metrics[-1]
    return (
        f"update {last['step']:.0f}/{updates}  reward {last['reward']:.3f}  staleness max {last['staleness_max']:.0f}"
    )


def summary_lines(document: Mapping[str, Any], directory: Path, *, prompts: int) -> list[str]:
    """The result of a demo whose `summary.json` is `document`."""
    p50, p95, largest = (document[f"staleness_{name}"] for name in ("p50", "p95", "max"))
    share = document["weight_bytes_from_volunteers_share"]
    network, daemon = document["network_resident_bytes_max"], document["network_daemon_bytes_max"]
    return [
        "",
        f"reward     {document['reward_before']:.3f} -> {document['reward_after']:.3f}  on {prompts:,} fresh prompts",
        f"updates    {document['updates']:,}, {counted(document['versions_published'], 'policy version')} published",
        f"staleness  p50 {p50:.0f}  p95 {p95:.0f}  max {counted(largest, 'update')}",
        f"weights    {share:.0%} of the bytes volunteers received came from other volunteers",
        downloads_line(document["patch_bytes"], document["whole_bytes"], document["brought_bytes"]),
        *(f"groups     {name:<14} {count:,} verified" for name, count in document["groups_by_contributor"].items()),
        f"rejected   {document['groups_rejected']:,}",
        f"memory     network processes at most {size_text(network)} each, their daemons {size_text(daemon)}",
        f"wall       {document['wall_s']:.0f} s",
        f"Kept in {directory}: metrics.jsonl, reward.png, summary.json, checkpoints, ledger. p2prl board {directory}",
    ]


def _worker(status: Mapping[str, Any]) -> str:
    version = f"{version_text(status['version']):<4}"
    groups = status.get("groups")
    if groups is None:
        return f"{version} {status['groups_replayed']:>4} replayed  {status['verdicts_failed']} failed"
    verified, rejected = groups.get("verified", 0), groups.get("rejected", 0)
    return (
        f"{version} {verified:>4} verified {rejected:>3} rejected   weights {received_text(status)}   {status['state']}"
    )
