"""Facts of a run for the model card: rewards from its metrics, contributors from its ledger, settings of its loss."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from p2prl.cli.views.export_card import RewardChange
from p2prl.config.loss_config import LossConfig
from p2prl.config.preference_packing import FOLDER, PAIRS_FILE
from p2prl.learner.training.preferences import PreferenceConfig, pair_count
from p2prl.plain_text import counted
from p2prl.scoreboard.documents.api_schema import EvaluationDocument
from p2prl.scoreboard.documents.evaluation_view import evaluations_document
from p2prl.scoreboard.ledger.ledger_sources import Snapshot
from p2prl.tasks.data.packed_file import PackedFile

_UPDATES = 20
"""Updates in the means at the start and at the end: one update's reward is mostly the luck of its prompts."""


def reward_change(metrics: Path, *, until_step: int) -> RewardChange | None:
    """Mean rewards of the first and last updates up to a step; None with fewer than two updates.

    The file may be growing; it is read line by line, as that of a long run may not fit into memory.
    """
    rewards: list[float] = []
    times: list[float] = []
    if metrics.exists():
        with metrics.open(encoding="utf-8") as file:
            for line in file:
                if not line.endswith("\n"):
                    break  # still being written
                update = json.loads(line)
                if update["step"] <= until_step:
                    rewards.append(float(update["reward"]))
                    times.append(float(update["time"]))
    if len(rewards) < 2:
        return None
    count = min(_UPDATES, len(rewards) // 2)
    return RewardChange(
        first=sum(rewards[:count]) / count,
        last=sum(rewards[-count:]) / count,
        updates=count,
        began_ms=int(times[0] * 1000),
        ended_ms=int(times[-1] * 1000),
    )


def newest_evaluation(snapshot: Snapshot, *, until_step: int) -> EvaluationDocument | None:
    """The evaluation of the newest version up to a step; None before the first."""
    measured = evaluations_document(snapshot, limit=len(snapshot.evaluations) or 1).evaluations
    return max((each for each in measured if each.step <= until_step), key=lambda each: each.step, default=None)


def loss_settings(loss: LossConfig) -> dict[str, object]:
    """The `[loss]` table of run.toml: the name, and every setting that differs from its default."""
    changed = _changed(asdict(loss), asdict(LossConfig()))
    return {"name": loss.name, **changed}


def preferences_text(run: Path, config: PreferenceConfig) -> str:
    """What pairs of preferences a run trains on; empty for none."""
    path = run / FOLDER / PAIRS_FILE
    if not path.exists():
        return ""
    pairs = counted(pair_count(PackedFile(path)), "pair")
    return f"DPO on {pairs}, {config.pairs_per_update} an update, β {config.beta:g}, with a weight of {config.weight:g}"


def _changed(values: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for key, value in values.items():
        default = defaults.get(key)
        if value == default:
            continue
        is_table = isinstance(value, dict) and isinstance(default, dict)
        changed[key] = _changed(value, default) if is_table and default else value
    return changed
