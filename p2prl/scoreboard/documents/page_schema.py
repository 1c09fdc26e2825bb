"""Documents of the HTTP API beyond the tables: work over time, a contributor's profile, milestones, sample answers.

The rules are those of `api_schema`, and the same test holds them to it: no field holds an address, host or place.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ActivitySeries:
    """Work of one contributor; item i belongs to `start[i]`."""

    id: str
    handle: str
    tokens: list[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class ActivityDocument:
    """Credited work over time by column: item i of every column belongs to the hour or day that begins at `start[i]`.

    Hours and days without work are listed too, so that the columns are evenly spaced.
    """

    unit: str
    """`hour` for a run of up to two days, else `day` (UTC)."""
    start: list[str]
    tokens: list[int]
    groups: list[int]
    contributors: list[int]
    """Contributors with credited work."""
    top: list[ActivitySeries]
    """The contributors with the most work over all columns."""
    other_tokens: list[int]
    """Work of everybody else."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Badge:
    """Something a contributor has achieved, counted from the ledger."""

    code: str
    title: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileDocument:
    """What the ledger says about one contributor beyond its row of the leaderboard."""

    id: str
    handle: str
    share: float
    """Share of all verified tokens of the run."""
    receipts: int
    """Groups with a counted receipt, credited or not."""
    receipts_root: str
    """Digest of all these receipts, hex: anyone computes the same from the ledger (docs/protocol.md)."""
    ledger_height: int
    ledger_head: str
    active_days: int
    """Days (UTC) with credited work."""
    badges: list[Badge]
    activity: ActivityDocument
    """The work of this contributor alone; `top` is empty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Milestone:
    """Something that the run or one of its contributors reached, counted from the ledger."""

    at: str | None
    """When the learner signed the receipts that reached it; of a contributor, the end of that hour."""
    code: str
    """Unique within the run and the same on every board."""
    title: str
    contributor_id: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class MilestonesDocument:
    """Milestones, newest first."""

    total: int
    milestones: list[Milestone]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The policy's most probable answer to one prompt."""

    version: int
    step: int
    text: str
    passes: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerPair:
    """One prompt that is never trained on, answered by the first and by the newest measured version."""

    task: str
    prompt: str
    before: Answer
    after: Answer


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswersDocument:
    """Sample answers before and after. Empty on a board that reads a swarm: the learner does not sign them."""

    pairs: list[AnswerPair]


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkDocument:
    """How well the work flows, over the last 20 learner steps that have a receipt."""

    steps: int
    credited_groups: int
    rejected_groups: int
    expired_groups: int
    active_contributors: int
    new_contributors: int
    """Of them, those whose first receipt is among these steps."""
    versions_behind_mean: float | None
    """Mean age of the credited groups' policy versions, in versions before the newest one used."""
    validators: int
    waiting_verdicts: int
    learner_errors: int
    """Receipts that validators found to be wrong, over the whole run."""
