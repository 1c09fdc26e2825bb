"""Totals of the validators' verdicts: counted against the receipts, paid by their checks.

The learner checks each verdict against its own replay and signs the outcome (`VerdictCheck`):

* agreed: the verdict earns the lesser of its own tokens and the check's, unless the validator and the sampler have the
  same owner, or owners of one team, when the check is signed (`verdict_pay`). It is in `escrow` for a while.
* failed: what is in escrow is void.
* unclear: nothing either way.
* contradicted: learner and validator have both replayed the group and disagree. A third validator decides: of the
  known ones, without those that have the owner or the team of the volunteer, or of the validator that contradicted
  first, the `DECIDERS` with the smallest hash of group and key may, and the first of them with a checked verdict on the
  group does. If it contradicts the learner as well, the receipt counts as overruled, and all verdicts against it as
  agreed; if not, they count as failed. Until then they earn nothing.

A verdict without a check earns nothing. Everybody with the ledger computes the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from p2prl.protocol.digests import DIGEST_BYTES, digest
from p2prl.protocol.identity import PUBLIC_KEY_BYTES
from p2prl.protocol.ledger_messages import CheckOutcome, Verdict, VerdictCheck
from p2prl.protocol.ownership import Ownership
from p2prl.protocol.team_membership import Teams
from p2prl.scoreboard.ledger.escrow import ESCROW_VERDICTS, Escrow
from p2prl.scoreboard.ledger.receipt_totals import MAX_GROUP_TOKENS, CountedGroup
from p2prl.scoreboard.ledger.total_rows import Validator
from p2prl.scoreboard.ledger.validator_shares import Change, ValidatorShares
from p2prl.scoreboard.ledger.verdict_pay import PayRecord, VerdictPay

DECIDERS = 3
"""Known validators that may decide a dispute: more than one, as any of them may be away; few, so that who has made
several keys known is seldom among them."""


@dataclass(slots=True)
class _CheckedGroup:
    """Checked verdicts on one group."""

    agreed: dict[bytes, None] = field(default_factory=dict)
    """Validators that agree with the learner."""
    against: dict[bytes, int] = field(default_factory=dict)
    """Validators that contradict it, with the tokens of their verdicts, in the order of their checks."""
    is_overruled: bool | None = None
    """None until a third has decided."""


class VerdictTotals:
    """Totals verdicts. A verdict waits for its group's receipt, so their order in the ledger does not matter."""

    def __init__(self, groups: Mapping[bytes, CountedGroup], ownership: Ownership, teams: Teams) -> None:
        """`groups` is the growing table of groups that have a receipt, `ownership` and `teams` those of owners."""
        self.validators: dict[bytes, Validator] = {}
        """By public key of the machine."""
        self.overruled = 0
        """Receipts that a third validator decided against."""
        self._groups = groups
        self._teams = teams
        self._pay = VerdictPay(ownership, teams)
        self._shares = ValidatorShares(ownership)
        self._escrow: Escrow[bytes, PayRecord] = Escrow(ESCROW_VERDICTS)
        """By validator, the newest verdicts that passed their check."""
        self.learner_ms = 0
        """The learner's newest signature, Unix milliseconds."""
        self._seen: set[tuple[bytes, bytes]] = set()
        self._waiting: dict[bytes, list[tuple[bytes, int, Verdict]]] = {}
        self._unchecked: dict[tuple[bytes, bytes], int] = {}
        """(validator, group) → tokens of its counted verdict."""
        self._checked: dict[bytes, _CheckedGroup] = {}

    @property
    def waiting(self) -> int:
        """Verdicts on groups that have no receipt yet."""
        return sum(len(verdicts) for verdicts in self._waiting.values())

    def knows(self, validator: bytes) -> bool:
        """Whether a validator has standing, as of its newest check."""
        row = self.validators.get(validator)
        return row is not None and row.standing.is_known

    def by_owner(self) -> dict[bytes, dict[bytes, Validator]]:
        """The validators' totals by owner, then by machine."""
        return self._shares.rows(self.validators, lambda machine: list(map(self._pay.paid, self._escrow.held(machine))))

    def on_learner_time(self, sent_ms: int) -> None:
        """The learner signed an entry at this time: what is counted from now on counts as of then."""
        self.learner_ms = max(self.learner_ms, sent_ms)

    def on_statement(self, machine: bytes) -> None:
        """A delegation or revocation of a machine was taken in: pay and owners of verdicts may change."""
        for validator, at_ms, tokens in self._pay.recount(machine):
            self._change(validator, at_ms, Change(tokens=tokens))
        self._shares.recount(machine)

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

    def add_check(self, check: VerdictCheck, sent_ms: int) -> str | None:
        """Apply the learner's check of a counted verdict, once. Returns the rule that ignores it, if any."""
        if not _is_possible(check):
            return "impossible_check"
        claimed = self._unchecked.pop((check.validator, check.group), None)
        if claimed is None:
            return "check_without_verdict"
        tokens = min(claimed, check.tokens)
        checked = self._checked.setdefault(check.group, _CheckedGroup())
        if check.outcome == CheckOutcome.FAILED:
            self._fail(check.validator, sent_ms)
        elif check.outcome == CheckOutcome.AGREED:
            checked.agreed[check.validator] = None
            self._pass(check.validator, check.group, tokens, sent_ms)
        elif check.outcome == CheckOutcome.CONTRADICTED:
            checked.against[check.validator] = tokens
            if checked.is_overruled is not None:
                self._close(check.validator, check.group, tokens, sent_ms, upheld=checked.is_overruled)
        if checked.against and checked.is_overruled is None:
            self._decide(check.group, checked, sent_ms)
        return None

    def _count(self, validator: bytes, sent_ms: int, verdict: Verdict) -> str | None:
        group = self._groups[verdict.group]
        if validator == group.peer:
            return "verdict_on_own_work"
        if (verdict.peer, verdict.version) != (group.peer, group.version):
            return "verdict_on_another_group"
        change = Change(
            verdict_ms=sent_ms,
            passed_groups=int(verdict.passed),
            failed_groups=int(not verdict.passed),
            disputed_groups=int(group.credited and not verdict.passed),
        )
        self._change(validator, self.learner_ms, change)
        self._unchecked[validator, verdict.group] = verdict.tokens
        return None

    def _decide(self, name: bytes, checked: _CheckedGroup, at_ms: int) -> None:
        """Close a dispute if one of its deciders has replayed the group."""
        parties = self._groups[name].peer, next(iter(checked.against))
        known = [
            validator
            for validator, row in self.validators.items()
            if row.standing.after(at_ms / 1000).is_known
            and not any(self._teams.are_allied(validator, party, at_ms) for party in parties)
        ]
        known.sort(key=lambda validator: digest("p2prl/dispute-decider/v1", name, validator))
        for validator in known[:DECIDERS]:
            if validator in checked.agreed or validator in checked.against:
                checked.is_overruled = validator in checked.against
                self.overruled += checked.is_overruled
                for each, tokens in checked.against.items():
                    self._close(each, name, tokens, at_ms, upheld=checked.is_overruled)
                return

    def _close(self, validator: bytes, group: bytes, tokens: int, at_ms: int, *, upheld: bool) -> None:
        """A verdict against the learner was decided."""
        if upheld:
            self._pass(validator, group, tokens, at_ms)
            self._change(validator, at_ms, Change(upheld_disputes=1))
        else:
            self._fail(validator, at_ms)

    def _pass(self, validator: bytes, group: bytes, tokens: int, at_ms: int) -> None:
        record = self._pay.earn(validator, self._groups[group].peer, at_ms, tokens)
        self._escrow.add(validator, record)
        self._change(validator, at_ms, Change(tokens=self._pay.paid(record)[1]))
        self._set_standing(validator, at_ms, passed=1.0)

    def _fail(self, validator: bytes, at_ms: int) -> None:
        for record in self._escrow.empty(validator):
            earned_ms, paid = self._pay.paid(record)
            self._pay.void(record)
            self._change(validator, earned_ms, Change(tokens=-paid))
        self._change(validator, at_ms, Change(failed_checks=1))
        self._set_standing(validator, at_ms, failed=1.0)

    def _set_standing(self, validator: bytes, at_ms: int, *, passed: float = 0.0, failed: float = 0.0) -> None:
        row = self.validators[validator]
        standing = row.standing.after(at_ms / 1000, passed=passed, failed=failed)
        self.validators[validator] = replace(row, standing=standing)

    def _change(self, validator: bytes, at_ms: int, change: Change) -> None:
        """Count a change of a validator's totals, for its owner at a time."""
        before = self.validators.get(validator) or Validator(last_ms=change.verdict_ms)
        escrow = tuple(self._pay.paid(record)[1] for record in self._escrow.held(validator))
        self.validators[validator] = replace(change.added_to(before), escrow=escrow)
        self._shares.add(validator, at_ms, change)


def _is_possible(check: VerdictCheck) -> bool:
    return (
        len(check.validator) == PUBLIC_KEY_BYTES
        and len(check.group) == DIGEST_BYTES
        and check.outcome in frozenset(CheckOutcome)
        and 0 <= check.tokens <= MAX_GROUP_TOKENS
    )
