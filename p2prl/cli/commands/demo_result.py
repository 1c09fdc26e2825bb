"""The result of a demo, from its metrics, status files, journal and ledger: `summary.json` and `reward.png`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from p2prl.cli.commands.demo_processes import RoleProcess
from p2prl.config.new_run import RunFolder
from p2prl.json_lines import read_json_lines
from p2prl.learner.journal.journal import Journal
from p2prl.protocol.identity import peer_id_of
from p2prl.scoreboard.ledger.run_folder_source import RunFolderSource
from p2prl.scoreboard.ledger.total_rows import Person


def demo_summary(
    roles: Sequence[RoleProcess], folder: RunFolder, before: float, after: float, *, wall_s: float
) -> dict[str, Any]:
    """Build the document. `before` and `after` are rewards measured on fresh prompts."""
    metrics = read_json_lines(folder.paths.metrics).objects
    statuses = [role.status() for role in roles if role.name.startswith("volunteer")]
    from_learner = sum(status.get("weight_bytes_from_learner", 0) for status in statuses)
    from_peers = sum(status.get("weight_bytes_from_peers", 0) for status in statuses)
    names = {status["peer"]: role.name for role in roles if "peer" in (status := role.status())}
    people = _contributors(folder)
    staleness = sorted(age for update in metrics for age in update["staleness"])
    return {
        "reward_before": before,
        "reward_after": after,
        "updates": int(metrics[-1]["step"]),
        "versions_published": _versions_published(folder),
        "staleness_p50": staleness[len(staleness) // 2],
        "staleness_p95": staleness[int(0.95 * (len(staleness) - 1))],
        "staleness_max": staleness[-1],
        "weight_bytes_from_volunteers_share": from_peers / max(1, from_peers + from_learner),
        "patch_bytes": sum(status.get("patch_bytes", 0) for status in statuses),
        "whole_bytes": sum(status.get("whole_bytes", 0) for status in statuses),
        "brought_bytes": sum(status.get("brought_bytes", 0) for status in statuses),
        "groups_verified": sum(person.verified_groups for person in people.values()),
        "groups_rejected": sum(person.rejected_groups for person in people.values()),
        "groups_by_contributor": {names.get(peer, peer): person.verified_groups for peer, person in people.items()},
        "network_resident_bytes_max": max((s.get("network_resident_bytes", 0) for s in statuses), default=0),
        "network_daemon_bytes_max": max((s.get("network_daemon_bytes", 0) for s in statuses), default=0),
        "run": str(folder.directory),
        "wall_s": wall_s,
    }


def _versions_published(folder: RunFolder) -> int:
    journal = Journal(folder.paths.journal)
    try:
        return journal.policies.count()
    finally:
        journal.close()


def _contributors(folder: RunFolder) -> dict[str, Person]:
    """Contributors by peer id, counted from the ledger."""
    source = RunFolderSource(folder.paths.journal, folder.manifest_raw)
    try:
        board = source.snapshot().board
        return {peer_id_of(key): person for key, person in board.people.items()} if board is not None else {}
    finally:
        source.close()


_WINDOW = 10
"""Updates in the moving average."""


def plot_run(metrics: list[dict[str, Any]], before: float, after: float, path: Path) -> None:
    """Write the plot to `path`. `before` and `after` are rewards measured on fresh prompts."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    steps = [m["step"] for m in metrics]
    rewards = [m["reward"] for m in metrics]
    windows = [rewards[max(0, i - _WINDOW + 1) : i + 1] for i in range(len(rewards))]
    means = [sum(window) / len(window) for window in windows]
    figure, (top, bottom) = pyplot.subplots(
        2, 1, figsize=(8, 5.5), sharex=True, height_ratios=(3, 1), constrained_layout=True
    )
    top.plot(steps, rewards, color="#9db8d9", linewidth=0.8, label="groups of one update")
    top.plot(steps, means, color="#1f5fa8", linewidth=2, label=f"mean of {_WINDOW} updates")
    top.scatter([0, steps[-1]], [before, after], color="#d1495b", zorder=3, label="fresh prompts")
    top.set_ylabel("reward")
    top.set_ylim(0, 1)
    top.legend(loc="lower right", frameon=False)
    bottom.fill_between(steps, [m["staleness_max"] for m in metrics], color="#e6e6e6", label="max")
    bottom.plot(steps, [m["staleness_p50"] for m in metrics], color="#555555", label="p50")
    bottom.set_ylabel("staleness")
    bottom.set_xlabel("learner update")
    bottom.legend(loc="upper left", frameon=False)
    for axis in (top, bottom):
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
