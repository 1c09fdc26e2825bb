"""From a snapshot to the documents of the API: sorting, rates, pages. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache

from p2prl.errors import ConfigError, IdentityError, StaleWorkError
from p2prl.protocol.identity import PeerId, peer_id_of, public_key_of
from p2prl.scoreboard.api_schema import (
    ContributorDocument,
    HealthDocument,
    LeaderboardDocument,
    LedgerHeadDocument,
    MetricsDocument,
    PassRate,
    RunDocument,
    TaskDocument,
    Totals,
    ValidatorDocument,
    VersionUse,
)
from p2prl.scoreboard.display_names import display_name
from p2prl.scoreboard.ledger_fold import BoardState
from p2prl.scoreboard.ledger_sources import KnownRun, Snapshot
from p2prl.scoreboard.totals import MICRO, Person, Step, Validator, summed, wilson_interval

ACTIVE_STEPS = 20
"""Learner steps that count as now: enough to smooth over one slow volunteer, few enough to notice one leave."""

CREDIT_DEFINITION = (
    "Credit = verified tokens × 2 × model parameters / 10¹⁵: petaFLOP of checked forward work. "
    "Validators earn the same for tokens they re-check. "
    "Nothing is earned for being online or for reward obtained. It is not money."
)

_peer_id = lru_cache(maxsize=100_000)(peer_id_of)
"""Base 58 is slow in Python, and every request sorts the same keys again."""

_CURSOR = re.compile(r"(\d{1,18})-([1-9A-HJ-NP-Za-km-z]{40,64})")
_LAST_MS = 253_402_300_799_000
"""The last millisecond a calendar of four-digit years can show; a verdict's author may date it later."""


class NotReadyError(StaleWorkError):
    """The board has not heard the run's manifest yet."""


def time_text(ms: int) -> str | None:
    """Milliseconds since the epoch as RFC 3339 in UTC, to the second; None for a time no calendar holds."""
    if not 0 <= ms <= _LAST_MS:
        return None
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def known(snapshot: Snapshot) -> tuple[KnownRun, BoardState]:
    """The run and the board of a snapshot. Raises `NotReadyError` before the manifest is known."""
    if snapshot.run is None or snapshot.board is None:
        raise NotReadyError("this board has not heard the run's manifest yet", remedy="Ask again in a few seconds.")
    return snapshot.run, snapshot.board


def run_document(snapshot: Snapshot) -> RunDocument:
    """The run at a glance."""
    run, board = known(snapshot)
    manifest = run.manifest
    weight = sum(task.weight for task in manifest.tasks)
    newest_ms = max((step.last_ms for step in board.steps.values()), default=None)
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
        tasks=[TaskDocument(name=task.task, share=round(task.weight / weight, 6)) for task in manifest.tasks],
        started_at=time_text(manifest.created_ms),
        updated_at=None if newest_ms is None else time_text(newest_ms),
        learner_step=max(steps, default=None),
        total_steps=snapshot.total_steps,
        policy_version=max(versions, default=None),
        finished=snapshot.finished,
        neighbours=snapshot.neighbours,
        join_link=snapshot.join_link,
        credit_definition=CREDIT_DEFINITION,
        totals=_totals(board),
        versions=_versions(board),
        ledger=head_document(snapshot),
    )


def head_document(snapshot: Snapshot) -> LedgerHeadDocument:
    """Where the ledger stands."""
    run, board = known(snapshot)
    return LedgerHeadDocument(
        run_id=run.run.hex(),
        height=board.height,
        head=board.head.hex(),
        signed_height=snapshot.signed_height,
        ignored_lines=dict(board.ignored),
        waiting_verdicts=board.waiting_verdicts,
        incident=snapshot.incident,
    )


def health_document(snapshot: Snapshot, failure: str | None) -> HealthDocument:
    """Whether the board is up to date and unbroken."""
    height = snapshot.board.height if snapshot.board is not None else 0
    incident = failure or snapshot.incident
    status = "failing" if incident else "ok" if height else "starting"
    return HealthDocument(status=status, height=height, incident=incident)


def leaderboard_document(snapshot: Snapshot, *, by: str, limit: int, cursor: str | None) -> LeaderboardDocument:
    """A page of `people` or `validators`, most credit first, equal credit by public key.

    Raises `ConfigError` when the cursor is not one of ours. The cursor holds the last row's place in the order, not
    its number, so a page neither repeats nor skips a row when others overtake in between.
    """
    _, board = known(snapshot)
    tallies: Mapping[bytes, Person] | Mapping[bytes, Validator] = board.people if by == "people" else board.validators
    order = sorted((-tally.tokens, _peer_id(key), key) for key, tally in tallies.items())
    start = 0
    if cursor is not None:
        match = _CURSOR.fullmatch(cursor)
        if match is None:
            raise ConfigError("the cursor is not one this API gave out", remedy="Use next_cursor of the page before.")
        last = (-int(match[1]), match[2])
        start = next((i for i, row in enumerate(order) if row[:2] > last), len(order))
    rows = order[start : start + limit]
    more = start + limit < len(order)
    ranked = list(enumerate(rows, start + 1))
    people = [_contributor(board, rank, key) for rank, (_, _, key) in ranked] if by == "people" else []
    validators = [_validator(board, rank, key) for rank, (_, _, key) in ranked] if by == "validators" else []
    next_cursor = f"{-rows[-1][0]}-{rows[-1][1]}" if more else None
    return LeaderboardDocument(by=by, total=len(order), people=people, validators=validators, next_cursor=next_cursor)


def contributor_document(snapshot: Snapshot, contributor_id: str) -> ContributorDocument | None:
    """One contributor by peer id, or None when the ledger has no receipt of it."""
    _, board = known(snapshot)
    try:
        key = public_key_of(PeerId(contributor_id))
    except IdentityError:
        return None
    if key not in board.people:
        return None
    place = (-board.people[key].tokens, contributor_id)
    ahead = sum((-person.tokens, _peer_id(other)) < place for other, person in board.people.items())
    return _contributor(board, ahead + 1, key)


def metrics_document(snapshot: Snapshot, *, from_step: int, to_step: int, points: int) -> MetricsDocument:
    """The reward curve of steps `from_step`..`to_step`, merged to at most `points` points."""
    _, board = known(snapshot)
    steps = sorted(step for step in board.steps if from_step <= step <= to_step)
    width = 1 if not steps else -(-(steps[-1] - steps[0] + 1) // points)
    merged: dict[int, Step] = {}
    for step in steps:
        first = steps[0] + (step - steps[0]) // width * width
        tally = board.steps[step]
        merged[first] = merged[first].merged(tally) if first in merged else tally
    rows = list(merged.values())
    intervals = [row.reward_interval() for row in rows]
    return MetricsDocument(
        steps_per_point=width,
        step=list(merged),
        reward_mean=[_rounded(row.mean_reward()) for row in rows],
        reward_low=[None if i is None else _rounded(i[0]) for i in intervals],
        reward_high=[None if i is None else _rounded(i[1]) for i in intervals],
        groups=[row.groups for row in rows],
        rejected_groups=[row.rejected_groups for row in rows],
        expired_groups=[row.expired_groups for row in rows],
        completions=[row.completions for row in rows],
        verified_tokens=[row.tokens for row in rows],
        oldest_version=[min(row.versions, default=None) for row in rows],
        newest_version=[max(row.versions, default=None) for row in rows],
    )


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
    )


def _tokens_per_s(steps: list[Step]) -> float | None:
    """Tokens after the first of these steps, over the time since it: the first one's own start is unknown."""
    if len(steps) < 2 or steps[-1].last_ms <= steps[0].last_ms:
        return None
    return round(sum(step.tokens for step in steps[1:]) / (steps[-1].last_ms - steps[0].last_ms) * 1000, 3)


def _versions(board: BoardState) -> list[VersionUse]:
    use: dict[int, int] = {}
    for step in sorted(board.steps)[-ACTIVE_STEPS:]:
        use = summed(use, board.steps[step].versions)
    groups = sum(use.values())
    return [VersionUse(version=v, groups=n, share=round(n / groups, 6)) for v, n in sorted(use.items(), reverse=True)]


def _contributor(board: BoardState, rank: int, key: bytes) -> ContributorDocument:
    person = board.people[key]
    checked = person.credited_groups + person.rejected_groups
    low, high = wilson_interval(person.credited_groups, checked)
    return ContributorDocument(
        rank=rank,
        id=_peer_id(key),
        handle=display_name(key),
        credit=board.credit(person.tokens),
        verified_groups=person.verified_groups,
        sampled_groups=person.sampled_groups,
        verified_tokens=person.tokens,
        completions=person.completions,
        mean_reward=_rounded(person.reward_micros / person.completions / MICRO) if person.completions else None,
        pass_rate=PassRate(
            passed=person.credited_groups,
            checked=checked,
            rate=_rounded(person.credited_groups / checked) if checked else None,
            low=round(low, 6),
            high=round(high, 6),
        ),
        rejected_groups=person.rejected_groups,
        rejected_by_reason=dict(person.rejected),
        expired_groups=person.expired_groups,
        expired_by_reason=dict(person.expired),
        first_step=person.first_step,
        last_step=person.last_step,
        last_receipt_at=time_text(person.last_ms),
    )


def _validator(board: BoardState, rank: int, key: bytes) -> ValidatorDocument:
    tally = board.validators[key]
    return ValidatorDocument(
        rank=rank,
        id=_peer_id(key),
        handle=display_name(key),
        credit=board.credit(tally.tokens),
        passed_groups=tally.passed_groups,
        failed_groups=tally.failed_groups,
        disputed_groups=tally.disputed_groups,
        rechecked_tokens=tally.tokens,
        last_verdict_at=time_text(tally.last_ms),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
