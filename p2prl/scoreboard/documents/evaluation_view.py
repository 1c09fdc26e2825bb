"""API document of a run's evaluations, from a snapshot. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from p2prl.scoreboard.documents.api_schema import (
    EvaluatedTaskDocument,
    EvaluationDocument,
    EvaluationsDocument,
    RateDocument,
)
from p2prl.scoreboard.documents.api_views import require_run, rounded
from p2prl.scoreboard.ledger.ledger_sources import Snapshot
from p2prl.time_text import time_text


def evaluations_document(snapshot: Snapshot, *, limit: int) -> EvaluationsDocument:
    """The newest `limit` evaluations. Raises `NotReadyError` before the manifest is known."""
    require_run(snapshot)
    newest = snapshot.evaluations[-limit:]
    return EvaluationsDocument(total=len(snapshot.evaluations), evaluations=[_evaluation(each) for each in newest])


def _evaluation(line: Mapping[str, Any]) -> EvaluationDocument:
    return EvaluationDocument(
        version=line["version"],
        step=line["step"],
        evaluated_at=time_text(int(line["time"] * 1000)),
        tasks=[_task(task, report) for task, report in line["tasks"].items()],
    )


def _task(task: str, report: Mapping[str, Any]) -> EvaluatedTaskDocument:
    return EvaluatedTaskDocument(
        task=task,
        split=report["split"],
        prompts=report["prompts"],
        samples=report["samples"],
        greedy_pass=_rate(report["greedy_pass"]),
        pass_at={k: _rate(rate) for k, rate in report["pass_at"].items()},
        score_mean=rounded(report["score_mean"]),
        entropy_per_token=rounded(report["entropy_per_token"]),
        completion_tokens_mean=round(report["completion_tokens_mean"], 3),
        truncated_share=round(report["truncated_share"], 6),
    )


def _rate(rate: Mapping[str, float]) -> RateDocument:
    return RateDocument(**{name: round(rate[name], 6) for name in ("rate", "low", "high")})
