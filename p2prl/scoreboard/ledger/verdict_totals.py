"""Totals of the validators' verdicts, each checked against the learner's receipt of the same group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from p2prl.protocol.digests import DIGEST_BYTES
from p2prl.protocol.ledger_messages import Verdict
from p2prl.scoreboard.ledger.leaderboard_totals import Validator
from p2prl.scoreboard.ledger.receipt_totals import MAX_GROUP_TOKENS, CountedGroup


class VerdictTotals:
    """Totals verdicts. A verdict waits for its group's receipt, so their order in the ledger does not matter."""

    def __init__(self, groups: Mapping[bytes, CountedGroup]) -> None:
        """`groups` is the growing table of groups that have a receipt."""
        self.validators: dict[bytes, Validator] = {}
        """By public key."""
        self._groups = groups
        self._seen: set[tuple[bytes, bytes]] = set()
        self._waiting: dict[bytes, list[tuple[bytes, int, Verdict]]] = {}

    @property
    def waiting(self) -> int:
        """Verdicts on groups that have no receipt yet."""
        return sum(len(verdicts) for verdicts in self._waiting.values())

    def add(self, validator: bytes, sent_ms: int, verdict: Verdict) -> str | None:
        """Count a verdict, or keep it until its receipt arrives. Returns the rule that ignores it, if any."""
        if len(verdict.group) != DIGEST_BYTES or not 0 <= verdict.tokens <= MAX_GROUP_TOKENS:
            return "impossible_verdict"
        if (validator, verdict.group) in self._seen:
            return "second_verdict"
        self._seen.add((validator, verdict.group))
        if verdict.group in self._groups:
            return self._count(validator, sent_ms, verdict)
        self._waiting.setdefault(verdict.group, []).append((validator, sent_ms, verdict))
        return None

    def on_receipt(self, group: bytes) -> list[str]:
        """Count the verdicts that waited for a group's receipt. Returns the rules of those ignored."""
        rules = [self._count(*waiting) for waiting in self._waiting.pop(group, ())]
        return [rule for rule in rules if rule is not None]

    def _count(self, validator: bytes, sent_ms: int, verdict: Verdict) -> str | None:
        group = self._groups[verdict.group]
        if validator == group.peer:
            return "verdict_on_own_work"
        if (verdict.peer, verdict.version) != (group.peer, group.version):
            return "verdict_on_another_group"
        before = self.validators.get(validator) or Validator(last_ms=sent_ms)
        self.validators[validator] = replace(
            before,
            last_ms=max(before.last_ms, sent_ms),
            passed_groups=before.passed_groups + verdict.passed,
            failed_groups=before.failed_groups + (not verdict.passed),
            disputed_groups=before.disputed_groups + (group.credited and not verdict.passed),
            tokens=before.tokens + min(verdict.tokens, group.tokens),
        )
        return None
