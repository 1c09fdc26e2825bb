"""Panel and progress line of a running learner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from p2prl.learner.timing.live_forecast import UPDATES
from p2prl.learner.training.learning_watch import SUMMARY
from p2prl.plain_text import counted

_IDLE = {
    "training/waiting_groups": "waiting for volunteers",
    "training/waiting_replay": "waiting for replay",
    "training/publishing": "publishing",
    "training/checkpoint": "saving",
}
"""Reasons why the training thread computes no update, by key of the metrics log."""

_SHOWN_SHARE = 0.01


WAITING = "waiting for groups"
"""Startup phase of a learner before its first update."""


def waiting_text(groups: Mapping[str, int], needed: int) -> str:
    """What the first update still waits for, of groups by state and the `needed` verified ones."""
    if verified := groups.get("verified", 0):
        return f"{verified:,} of {needed:,} verified for the first update"
    if stored := groups.get("stored", 0):
        return f"{counted(stored, 'group')} to be replayed"
    if any(groups.values()):
        return f"none verified so far, {groups.get('rejected', 0):,} rejected"
    return "start volunteers with p2prl join and the link"


def update_line(name: str, metrics: Mapping[str, Any], *, planned: int, first: bool) -> str:
    """The newest update in one line. `planned` is the run's number of updates, 0 for no end.

    The `first` update shows no pace, because its interval includes the wait for volunteers.
    """
    step = f"{metrics['step']:,.0f}" + (f"/{planned:,}" if planned else "")
    pace = "" if first else f"  {metrics['seconds']:.2f} s/update"
    return (
        f"{name}  step {step}  reward {metrics['reward']:.3f}  loss {metrics['loss']:+.4f}"
        f"  staleness p50/max {metrics['staleness_p50']:.0f}/{metrics['staleness_max']:.0f}"
        f"  from {counted(metrics['peers'], 'volunteer')}{pace}"
        + "".join(f"  warning: {text}" for text in warning_texts(metrics))
    )


def update_panel(name: str, metrics: Mapping[str, Any], *, planned: int, first: bool) -> RenderableType:
    """The newest update, redrawn in place; arguments as for `update_line`."""
    table = Table.grid(padding=(0, 2))
    step = f"update {metrics['step']:,.0f}" + (f" of {planned:,}" if planned else ", no end set")
    table.add_row(name, f"{step}   policy v{metrics['version']:.0f}")
    table.add_row("reward", f"{metrics['reward']:.3f}, mean of the newest batch   loss {metrics['loss']:+.4f}")
    median, largest = metrics["staleness_p50"], metrics["staleness_max"]
    table.add_row("staleness", f"median {median:.0f}, largest {counted(largest, 'update')}")
    pace = "" if first else f"   {metrics['seconds']:.2f} s an update"
    volunteers = counted(metrics["peers"], "volunteer")
    table.add_row("batch", f"{counted(metrics['groups'], 'group')} of {volunteers}{pace}")
    if limit := _idle(metrics):
        table.add_row("training", limit)
    if foreseen := forecast_text(metrics):
        table.add_row("at work", foreseen)
    for text in evaluation_texts(metrics):
        table.add_row("evaluation", text)
    for text in warning_texts(metrics):
        table.add_row("warning", text, style="yellow")
    table.add_row("stop", "Ctrl-C finishes this update and saves; run the same command to resume")
    return table


def evaluation_texts(metrics: Mapping[str, Any]) -> list[str]:
    """The newest evaluation, one line per task; empty before the first."""
    texts = []
    for key in metrics:
        if key.startswith("evaluation/") and key.endswith("/greedy_pass"):
            task = key.split("/", 1)[1].removesuffix("/greedy_pass")
            rate, low, high = (metrics[f"{key}{end}"] for end in ("", "_low", "_high"))
            best, k = (metrics.get(f"evaluation/{task}/{part}") for part in ("pass_at_k", "samples"))
            texts.append(
                f"{task} v{metrics['evaluation/version']:.0f}: greedy {rate:.3f} ({low:.3f} to {high:.3f})"
                + ("" if best is None else f", pass@{'k' if k is None else f'{k:.0f}'} {best:.3f}")
            )
    return sorted(texts)


def warning_texts(metrics: Mapping[str, Any]) -> list[str]:
    """What keeps the run from learning, in clauses; empty while nothing does."""
    known = {str(trouble): text for trouble, text in SUMMARY.items()}
    return [known[name] for name in metrics.get("signal/warnings", ()) if name in known]


def forecast_text(metrics: Mapping[str, Any]) -> str:
    """How much of its time the learner had groups, and what is foreseen; empty before enough updates."""
    if "plan/realised" not in metrics:
        return ""
    text = f"{metrics['plan/realised']:.0%} of the last {UPDATES} updates' time"
    if "plan/predicted_utilisation" not in metrics:
        return text
    middle, low, high = (float(metrics[f"plan/{key}"]) for key in ("predicted_utilisation", "low", "high"))
    spread = "" if f"{low:.0%}" == f"{high:.0%}" else f" ({low:.0%} to {high:.0%})"
    resting = f"; {counted(standby, 'volunteer')} on standby" if (standby := metrics.get("plan/standby")) else ""
    return f"{text}, {middle:.0%} foreseen for the next{spread}{resting}"


def _idle(metrics: Mapping[str, Any]) -> str:
    """How busy the training thread was, and the largest reason why not; empty where it was not measured."""
    if "training/busy" not in metrics:
        return ""
    reason = max(_IDLE, key=lambda key: float(metrics.get(key, 0.0)))
    busy, idle = float(metrics["training/busy"]), float(metrics.get(reason, 0.0))
    return f"{busy:.0%} busy" + (f", {idle:.0%} {_IDLE[reason]}" if idle >= _SHOWN_SHARE else "")
