"""Totals of the leaderboard as values: one per contributor, per validator and per learner step.

Sums are integers (rewards in millionths), so a total does not depend on the order of addition. Totals are immutable and
replaced on each change, so a reader in another thread has a consistent board without copying it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from p2prl.protocol.standing import Standing

NO_STANDING = Standing()
"""Of a validator without checked verdicts."""

MICRO = 1_000_000
"""Rewards are kept in millionths."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Person:
    """Sums over the learner's receipts of one owner, or of one of its machines. Many fields, because each is shown."""

    first_step: int
    """Learner step of the first receipt."""
    last_step: int
    """Learner step of the newest receipt."""
    first_ms: int
    """When the learner signed the first receipt, milliseconds since the epoch."""
    last_ms: int
    """When it signed the newest."""
    verified_groups: int = 0
    """Groups the learner checked and accepted."""
    sampled_groups: int = 0
    """Groups credited by sampling: enough other groups of the same peer were checked."""
    rejected: Mapping[str, int] = field(default_factory=dict)
    """Rejected groups, by reason code."""
    expired: Mapping[str, int] = field(default_factory=dict)
    """Groups that arrived too stale, by reason code; not counted against the contributor."""
    completions: int = 0
    """Completions in credited groups."""
    tokens: int = 0
    """Completion tokens in credited groups, less those forfeited; credit is linear in it."""
    escrow: tuple[int, ...] = ()
    """Tokens of the newest credited groups of a machine; empty in an owner's row."""
    escrow_tokens: int = 0
    """Tokens that leave escrow with further credited groups, or when the run ends; part of `tokens`."""
    forfeited_tokens: int = 0
    """Tokens in escrow when the key was excluded."""
    reward_micros: int = 0
    """Sum over credited completions of their group's mean reward, millionths."""
    receipts_chain: bytes = b""
    """Chained digest of a machine's receipts in the order of the ledger; empty in an owner's row."""

    @property
    def credited_groups(self) -> int:
        """Groups that earned credit: verified, or credited by sampling."""
        return self.verified_groups + self.sampled_groups

    @property
    def rejected_groups(self) -> int:
        return sum(self.rejected.values())

    @property
    def expired_groups(self) -> int:
        return sum(self.expired.values())

    def merged(self, other: Person) -> Person:
        """The sum of both, as an owner's row."""
        return Person(
            first_step=min(self.first_step, other.first_step),
            last_step=max(self.last_step, other.last_step),
            first_ms=min(self.first_ms, other.first_ms),
            last_ms=max(self.last_ms, other.last_ms),
            verified_groups=self.verified_groups + other.verified_groups,
            sampled_groups=self.sampled_groups + other.sampled_groups,
            rejected=_summed_reasons(self.rejected, other.rejected),
            expired=_summed_reasons(self.expired, other.expired),
            completions=self.completions + other.completions,
            tokens=self.tokens + other.tokens,
            escrow_tokens=self.escrow_tokens + other.escrow_tokens,
            forfeited_tokens=self.forfeited_tokens + other.forfeited_tokens,
            reward_micros=self.reward_micros + other.reward_micros,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Validator:
    """Counted verdicts of one public key on other peers' groups."""

    last_ms: int
    """Time of its newest counted verdict by its own clock, milliseconds since the epoch."""
    passed_groups: int = 0
    failed_groups: int = 0
    disputed_groups: int = 0
    """Groups it failed although the learner credited them."""
    failed_checks: int = 0
    """Verdicts that proved no replay, or that a third validator decided against."""
    upheld_disputes: int = 0
    """Verdicts against the learner's receipt that a third validator confirmed."""
    tokens: int = 0
    """Tokens re-checked in verdicts whose check passed: for each group, the smaller of its claim and the learner's."""
    escrow: tuple[int, ...] = ()
    """Tokens of the newest such verdicts, which a failed check would void; part of `tokens`."""
    standing: Standing = NO_STANDING
    """Standing from the checks of its verdicts."""

    @property
    def escrow_tokens(self) -> int:
        """Tokens that leave escrow with further passed checks, or when the run ends."""
        return sum(self.escrow)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Groups credited, rejected and expired at one learner step."""

    last_ms: int
    groups: int = 0
    """Credited groups."""
    completions: int = 0
    tokens: int = 0
    rejected_groups: int = 0
    expired_groups: int = 0
    reward_micros: int = 0
    """Sum over credited completions of their group's mean reward, millionths."""
    reward_squares: int = 0
    """Sum over credited groups of the squared mean reward, millionths squared; gives the interval of the mean."""
    group_reward_micros: int = 0
    """Sum over credited groups of the mean reward, millionths."""
    versions: Mapping[int, int] = field(default_factory=dict)
    """Credited groups by the policy version that sampled them."""

    def merged(self, other: Step) -> Step:
        """The sum of both; a coarse curve merges the totals of several steps."""
        return Step(
            last_ms=max(self.last_ms, other.last_ms),
            groups=self.groups + other.groups,
            completions=self.completions + other.completions,
            tokens=self.tokens + other.tokens,
            rejected_groups=self.rejected_groups + other.rejected_groups,
            expired_groups=self.expired_groups + other.expired_groups,
            reward_micros=self.reward_micros + other.reward_micros,
            reward_squares=self.reward_squares + other.reward_squares,
            group_reward_micros=self.group_reward_micros + other.group_reward_micros,
            versions=summed(self.versions, other.versions),
        )

    def mean_reward(self) -> float | None:
        """Mean recomputed reward, weighted by completions; None when nothing was credited."""
        return self.reward_micros / self.completions / MICRO if self.completions else None

    def reward_interval(self) -> tuple[float, float] | None:
        """95 % interval of the mean, from the spread between groups; None with fewer than two groups."""
        mean = self.mean_reward()
        if mean is None or self.groups < 2:
            return None
        center = self.group_reward_micros / self.groups
        variance = max(0.0, (self.reward_squares / self.groups - center**2)) * self.groups / (self.groups - 1)
        half = 1.96 * math.sqrt(variance / self.groups) / MICRO
        return mean - half, mean + half


def summed(first: Mapping[int, int], second: Mapping[int, int]) -> dict[int, int]:
    """Sum of two counts, keys in increasing order."""
    return {key: first.get(key, 0) + second.get(key, 0) for key in sorted({*first, *second})}


def _summed_reasons(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    return {key: first.get(key, 0) + second.get(key, 0) for key in sorted({*first, *second})}


def wilson_interval(passed: int, checked: int) -> tuple[float, float]:
    """95 % interval of a pass rate (Wilson 1927, score interval), so that 3 out of 3 does not read as certain.

    Returns (0, 1) when nothing was checked.
    """
    if checked == 0:
        return 0.0, 1.0
    z = 1.959963984540054
    rate, spread = passed / checked, z * z / checked
    center = (rate + spread / 2) / (1 + spread)
    half = z * math.sqrt(rate * (1 - rate) / checked + spread / (4 * checked)) / (1 + spread)
    return max(0.0, center - half), min(1.0, center + half)
