"""API documents of the run, the ledger head, the board's health and the reward curve, from a snapshot. Pure."""

from __future__ import annotations

import base64
from dataclasses import asdict
from functools import lru_cache, reduce

from p2prl.errors import StaleWorkError
from p2prl.protocol.identity import peer_id_of
from p2prl.protocol.reward_text import reward_model_of
from p2prl.scoreboard.documents.api_schema import (
    HealthDocument,
    LedgerHeadDocument,
    MetricsDocument,
    PaceDocument,
    RanksDocument,
    RunDocument,
    TaskDocument,
    Totals,
    VersionUse,
)
from p2prl.scoreboard.ledger.known_run import KnownRun
from p2prl.scoreboard.ledger.ledger_fold import BoardState
from p2prl.scoreboard.ledger.ledger_sources import Snapshot
from p2prl.scoreboard.ledger.total_rows import Step, summed
from p2prl.time_text import time_text

ACTIVE_STEPS = 20
"""Steps that count as current: enough to smooth out a slow volunteer, few enough to notice when one leaves."""

CREDIT_DEFINITION = (
    "Credit = verified tokens × 2 × model parameters / 10¹⁵: petaFLOP of checked forward work. "
    "Validators earn the same for tokens they re-check. The newest part is in escrow until further work is verified, "
    "or the run ends. "
    "Being online or obtaining reward earns nothing. Credit is not money."
)


class NotReadyError(StaleWorkError):
    """The board has not received the run manifest yet."""


def require_run(snapshot: Snapshot) -> tuple[KnownRun, BoardState]:
    """The run and the board of a snapshot. Raises `NotReadyError` before the manifest is known."""
    if snapshot.run is None or snapshot.board is None:
        raise NotReadyError("this board has not received the run manifest yet", remedy="Retry in a few seconds.")
    return snapshot.run, snapshot.board


def run_document(snapshot: Snapshot) -> RunDocument:
    """Overview of the run."""
    run, board = require_run(snapshot)
    manifest = run.manifest
    weight = sum(task.weight for task in manifest.tasks)
    newest_ms = board.newest_ms()
    offline = None if snapshot.finished else snapshot.learner_offline_since
    steps = list(board.steps) if snapshot.learner_step is None else [*board.steps, snapshot.learner_step]
    versions = [version for step in board.steps.values() for version in step.versions]
    if snapshot.policy_version is not None:
        versions.append(snapshot.policy_version)
    return RunDocument(
        run_id=run.run.hex(),
        name=manifest.name,
        goal=manifest.goal,
        base_model=manifest.base_model,
        parameters=manifest.parameters,
        licence=manifest.licence,
        content_policy=manifest.content_policy,
        reward=manifest.reward,
        reward_recomputable=not reward_model_of(manifest.reward),
        tasks=[TaskDocument(name=task.task, share=round(task.weight / weight, 6)) for task in manifest.tasks],
        started_at=time_text(manifest.created_ms),
        updated_at=None if newest_ms is None else time_text(newest_ms),
        learner_step=max(steps, default=None),
        total_steps=snapshot.total_steps,
        policy_version=max(versions, default=None),
        finished=snapshot.finished,
        learner_offline_since=None if offline is None else time_text(int(offline * 1000)),
        pace=None if snapshot.pace is None else PaceDocument(**asdict(snapshot.pace)),
        ranks=None
        if (shared := snapshot.ranks) is None
        else RanksDocument(plan=shared.plan, ranks=shared.ranks, machines=shared.hosts),
        neighbours=snapshot.connected_peers,
        join_link=snapshot.join_link,
        credit_definition=CREDIT_DEFINITION,
        totals=_totals(board),
        versions=_versions(board),
        ledger=head_document(snapshot),
    )


def head_document(snapshot: Snapshot) -> LedgerHeadDocument:
    """Height and head of the ledger."""
    run, board = require_run(snapshot)
    return LedgerHeadDocument(
        run_id=run.run.hex(),
        signer=peer_id_of(run.ledger_key),
        validators_own=bool(run.validator),
        height=board.height,
        head=board.head.hex(),
        signed_height=snapshot.signed_height,
        signed_head_base64=base64.b64encode(snapshot.signed_head).decode(),
        ignored_lines=dict(board.ignored),
        waiting_verdicts=board.waiting_verdicts,
        incident=snapshot.incident,
    )


def health_document(snapshot: Snapshot, failure: str | None) -> HealthDocument:
    """Whether the board works and its ledger is sound."""
    height = snapshot.board.height if snapshot.board is not None else 0
    incident = failure or snapshot.incident
    status = "failing" if incident else "ok" if height else "starting"
    return HealthDocument(status=status, height=height, incident=incident)


def metrics_document(snapshot: Snapshot, *, from_step: int, to_step: int, points: int) -> MetricsDocument:
    """The reward curve of steps `from_step`..`to_step`, merged to at most `points` points."""
    _, board = require_run(snapshot)
    steps = sorted(step for step in board.steps if from_step <= step <= to_step)
    width = 1 if not steps else -(-(steps[-1] - steps[0] + 1) // points)
    merged: dict[int, Step] = {}
    for step in steps:
        first = steps[0] + (step - steps[0]) // width * width
        totals = board.steps[step]
        merged[first] = merged[first].merged(totals) if first in merged else totals
    rows = list(merged.values())
    intervals = [row.reward_interval() for row in rows]
    return MetricsDocument(
        steps_per_point=width,
        step=list(merged),
        ended_at=[time_text(row.last_ms) for row in rows],
        reward_mean=[rounded(row.mean_reward()) for row in rows],
        reward_low=[None if i is None else rounded(i[0]) for i in intervals],
        reward_high=[None if i is None else rounded(i[1]) for i in intervals],
        groups=[row.groups for row in rows],
        rejected_groups=[row.rejected_groups for row in rows],
        expired_groups=[row.expired_groups for row in rows],
        completions=[row.completions for row in rows],
        verified_tokens=[row.tokens for row in rows],
        oldest_version=[min(row.versions, default=None) for row in rows],
        newest_version=[max(row.versions, default=None) for row in rows],
    )


def reward_change(board: BoardState) -> tuple[float, float] | None:
    """Mean reward of the first and of the newest `ACTIVE_STEPS` steps; None without credited groups in both."""
    steps = [board.steps[step] for step in sorted(board.steps)]
    if len(steps) < 2:
        return None
    count = min(ACTIVE_STEPS, len(steps) // 2)
    first = reduce(Step.merged, steps[:count]).mean_reward()
    last = reduce(Step.merged, steps[-count:]).mean_reward()
    return None if first is None or last is None else (first, last)


@lru_cache(maxsize=1)
def _totals(board: BoardState) -> Totals:
    people = board.people.values()
    tokens = sum(person.tokens for person in people)
    recent = sorted(board.steps)[-ACTIVE_STEPS:]
    return Totals(
        contributors=len(people),
        active_contributors=sum(bool(recent) and person.last_step >= recent[0] for person in people),
        validators=len(board.validators),
        verified_groups=sum(person.verified_groups for person in people),
        sampled_groups=sum(person.sampled_groups for person in people),
        rejected_groups=sum(person.rejected_groups for person in people),
        expired_groups=sum(person.expired_groups for person in people),
        completions=sum(person.completions for person in people),
        verified_tokens=tokens,
        verified_tokens_per_s=_tokens_per_s([board.steps[step] for step in recent]),
        credit=board.credit(tokens),
        overruled_receipts=board.overruled_receipts,
    )


def _tokens_per_s(steps: list[Step]) -> float | None:
    """Tokens after the first of these steps, divided by the time since; the start of the first is unknown."""
    if len(steps) < 2 or steps[-1].last_ms <= steps[0].last_ms:
        return None
    return round(sum(step.tokens for step in steps[1:]) / (steps[-1].last_ms - steps[0].last_ms) * 1000, 3)


def _versions(board: BoardState) -> list[VersionUse]:
    use: dict[int, int] = {}
    for step in sorted(board.steps)[-ACTIVE_STEPS:]:
        use = summed(use, board.steps[step].versions)
    groups = sum(use.values())
    return [VersionUse(version=v, groups=n, share=round(n / groups, 6)) for v, n in sorted(use.items(), reverse=True)]


def rounded(value: float | None) -> float | None:
    """Round a document's number to six decimals."""
    return None if value is None else round(value, 6)
