"""Documents of the HTTP API, version 1.

Rules: ids are strings; times are RFC 3339 in UTC; names include units; within v1 fields are only added. No field holds
an address, a host or a location, which a test enforces. The only exception is the join link, which names the learner
and peers that have chosen so. A document has as many fields as its readers need: no limit on their number.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals:
    """Sums over the whole ledger."""

    contributors: int
    active_contributors: int
    """Contributors with a receipt in the last 20 learner steps that have one."""
    validators: int
    verified_groups: int
    sampled_groups: int
    """Groups credited by sampling, without a replay of their own."""
    rejected_groups: int
    expired_groups: int
    completions: int
    verified_tokens: int
    """Completion tokens of verified and sampled groups."""
    verified_tokens_per_s: float | None
    """Over the last 20 learner steps, by the learner's clock; null with fewer than two."""
    credit: float
    """verified_tokens × 2 × parameters / 10^15."""
    overruled_receipts: int
    """Receipts that validators found to be wrong, a third of them chosen by standing and hash."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VersionUse:
    """Credited groups of one policy version in the last 20 learner steps."""

    version: int
    groups: int
    share: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerHeadDocument:
    """Height and head of the ledger, for comparing two boards."""

    run_id: str
    signer: str
    """Peer id of whose receipts these are: the run's learner, or a validator with a ledger of its own."""
    validators_own: bool
    """Whether this is a validator's own ledger."""
    height: int
    """Entries."""
    head: str
    """Digest of the newest entry, hex: equal heads mean equal boards."""
    signed_height: int | None
    """Highest height for which this board has the learner's signature; null when it has none."""
    signed_head_base64: str
    """That signature: the envelope of the learner's head; empty when it has none."""
    ignored_lines: dict[str, int]
    """Ignored ledger lines, by rule."""
    waiting_verdicts: int
    """Verdicts on groups that have no receipt yet."""
    incident: str | None
    """Proof that the ledger cannot be trusted, in one sentence; null while there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskDocument:
    """A task of the run's mix."""

    name: str
    share: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PaceDocument:
    """Share of the last 16 updates' time in which training had groups, and what the learner foresaw."""

    realised: float
    predicted: float | None
    """The same, foreseen for the next 16 updates; null where too few groups came."""
    low: float | None
    high: float | None
    """Eight of ten such forecasts lie between these."""
    error: float | None
    """The newest forecast that was compared, less what came; null before one was."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RanksDocument:
    """Processes that share every update of the learner."""

    plan: str
    """How they share it, as `p2prl learn --plan` names it; `1` for one process."""
    ranks: int
    """Processes together."""
    machines: int
    """How many computers they run on; no field says which."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunDocument:
    """Overview of the run. Texts come from the run's signed manifest.

    Many fields, because a reader gets the whole overview in one answer.
    """

    run_id: str
    """Digest of the run manifest's envelope, hex."""
    name: str
    goal: str
    base_model: str
    parameters: int
    licence: str
    content_policy: str
    reward: str
    reward_recomputable: bool
    """Whether others than the learner can compute the reward: not that of a reward model, which it alone has."""
    tasks: list[TaskDocument]
    started_at: str | None
    updated_at: str | None
    """When the learner signed its newest receipts."""
    learner_step: int | None
    """Learner updates known to this board; null before the first receipt."""
    total_steps: int | None
    """Planned steps; null when the run has no end or this board does not know it."""
    policy_version: int | None
    """Newest policy version known here."""
    finished: bool
    learner_offline_since: str | None
    """When the learner was last heard of, if it is offline; null while it is not, and after the run's end."""
    pace: PaceDocument | None
    """null where this board does not read the learner's folder, and before 16 updates."""
    ranks: RanksDocument | None
    """null where this board does not read the learner's folder, and before its first update."""
    neighbours: dict[str, int] | None
    """Peers this board is connected to, by role; null when it reads a run folder."""
    join_link: str
    """Empty when the operator published none."""
    credit_definition: str
    totals: Totals
    versions: list[VersionUse]
    ledger: LedgerHeadDocument


@dataclass(frozen=True, kw_only=True, slots=True)
class PassRate:
    """Share of checked groups that were credited, with its 95 % interval."""

    passed: int
    checked: int
    rate: float | None
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineDocument:
    """Work of one machine that counts for a contributor."""

    id: str
    """The peer id of the machine's key."""
    handle: str
    """Display name, derived from that key."""
    credit: float
    verified_groups: int
    sampled_groups: int
    verified_tokens: int
    rejected_groups: int
    last_step: int
    last_receipt_at: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ContributorDocument:
    """Work of one owner on all its machines. Many fields, because each is a column of the page."""

    rank: int
    id: str
    """The peer id of the owner's public key: the machine's own unless a delegation names another."""
    handle: str
    """Display name, derived from the public key; never something a person typed."""
    team: str
    """Name of the team that it is in now; empty for none. A person typed it."""
    team_id: str | None
    """The peer id of the team's public key; null for none."""
    credit: float
    window_credit: float
    """Credit within the window that was asked for; all of it without one."""
    window_groups: int
    """Credited groups within the window."""
    window_tokens: int
    verified_groups: int
    sampled_groups: int
    verified_tokens: int
    escrow_tokens: int
    """Part of verified_tokens that an exclusion would forfeit; it becomes final with further verified groups."""
    forfeited_tokens: int
    completions: int
    mean_reward: float | None
    """Weighted by completions; null when nothing was credited. Reward earns no credit."""
    pass_rate: PassRate
    rejected_groups: int
    rejected_by_reason: dict[str, int]
    expired_groups: int
    expired_by_reason: dict[str, int]
    first_step: int
    last_step: int
    last_receipt_at: str | None
    receipts_root: str
    """Digest of all receipts that count for this contributor, hex (docs/protocol.md)."""
    machine_count: int
    """Machines with a receipt in this row, the owner's own key among them if it has one."""
    machines: list[MachineDocument]
    """Those with the most credit, at most 16 in a list of contributors; all of them in the answer for one. Empty when
    the only machine is the owner's own key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidatorDocument:
    """Counted verdicts of one owner's validators. Many fields, because each is a figure of the page."""

    rank: int
    id: str
    """The peer id of the owner's public key: the validator's own unless a delegation names another."""
    handle: str
    credit: float
    passed_groups: int
    failed_groups: int
    disputed_groups: int
    """Groups it failed although the learner credited them."""
    failed_checks: int
    """Verdicts that proved no replay, or that a third validator decided against."""
    upheld_disputes: int
    """Verdicts against the learner that a third validator confirmed."""
    rechecked_tokens: int
    escrow_tokens: int
    """Part of rechecked_tokens that a failed check would void; it becomes final with further verdicts."""
    last_verdict_at: str | None
    machine_count: int
    """Machines with a counted verdict in this row, the owner's own key among them if it has one."""
    machines: list[str]
    """Their peer ids, at most 16. Empty when the only machine is the owner's own key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaderboardDocument:
    """One page of the leaderboard; only one of the two lists is used."""

    by: str
    window: str
    """`today`, `7d` (days in UTC up to that of the newest receipt) or `all`; always `all` for validators."""
    total: int
    """Total rows: of the table, or of the search when there is one."""
    people: list[ContributorDocument]
    validators: list[ValidatorDocument]
    next_cursor: str | None
    """Pass it as `cursor` to get the next page; null on the last one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricsDocument:
    """Reward curve by column: item i of every column belongs to point i. Oldest first.

    It has this many fields because each is a column.
    """

    steps_per_point: int
    """Learner steps in one point."""
    step: list[int]
    """First learner step of the point."""
    ended_at: list[str | None]
    """When the learner signed the point's newest receipts."""
    reward_mean: list[float | None]
    """Mean recomputed reward, weighted by completions."""
    reward_low: list[float | None]
    """Lower end of the mean's 95 % interval, from the spread between groups."""
    reward_high: list[float | None]
    groups: list[int]
    rejected_groups: list[int]
    expired_groups: list[int]
    completions: list[int]
    verified_tokens: list[int]
    oldest_version: list[int | None]
    """Oldest policy version whose groups were credited."""
    newest_version: list[int | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class RateDocument:
    """A share of prompts, with its 95 % interval."""

    rate: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluatedTaskDocument:
    """One task of an evaluation (docs/metrics.md)."""

    task: str
    split: str
    """`held-out` rows of a data set, or `fresh` prompts of a procedural task."""
    prompts: int
    samples: int
    """Samples of each prompt, beside the greedy completion."""
    greedy_pass: RateDocument
    """Prompts whose greedy completion passes."""
    pass_at: dict[str, RateDocument]
    """pass@k by k; empty without samples."""
    score_mean: float | None
    """Mean score of the samples; null without any."""
    entropy_per_token: float | None
    """Nats, estimated from the samples; null without any."""
    completion_tokens_mean: float
    truncated_share: float


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationDocument:
    """One evaluated policy version."""

    version: int
    step: int
    evaluated_at: str | None
    tasks: list[EvaluatedTaskDocument]


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationsDocument:
    """Evaluations of the run on prompts that are never trained on, oldest first.

    Empty on a board that reads a swarm: the learner does not sign them, so no peer passes them on.
    """

    total: int
    evaluations: list[EvaluationDocument]
    """The newest of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EntriesDocument:
    """Consecutive ledger entries as they were signed."""

    from_height: int
    entries_base64: list[str]
    height: int
    """Entries in the whole ledger."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HealthDocument:
    """Whether this board works and its ledger is sound."""

    status: str
    """`ok`, `starting` (no entry yet) or `failing`."""
    height: int
    incident: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorDocument:
    """Reason for refusing a request, and a remedy. Every error response has this body."""

    error: str
    remedy: str
