"""Checks of verdicts: which enter the ledger, and whether each proves a replay. Called inside journal transactions.

The learner replays every group that it credits, and keeps the log-probs of every token that a validator may be asked
for (`verdict_probes`). So a verdict is checked against a replay that was done anyway, always, at no cost. An unproven
verdict of a newcomer leaves no trace: an entry of the ledger costs a forward pass, or standing that was earned by some.

Places on a group go by standing: validators known by their checks have places of their own, and newcomers, whose keys
are free, share the others. Verdicts may arrive before their group's receipt; those that wait compete for a bounded
room, known validators first, then in an order that a hash of validator and group draws anew for every group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from p2prl.clock import Clock
from p2prl.learner.intake.admission import Outcome
from p2prl.learner.journal.groups import GroupState
from p2prl.learner.journal.journal import Journal
from p2prl.learner.journal.verdicts import OwnReplay, WaitingVerdict
from p2prl.learner.signing_sender import SigningSender
from p2prl.protocol import limits
from p2prl.protocol.digests import Digest, digest
from p2prl.protocol.envelope import Opened, body_of, open_envelope
from p2prl.protocol.ledger_messages import CheckOutcome, ReceiptState, Verdict, VerdictCheck, VerdictChecks
from p2prl.protocol.rejection_reasons import RejectionReason

KNOWN_PLACES = 12
"""Verdicts on one group that enter the ledger, of validators known by their checks: after this many independent replays
another one adds nothing."""

NEWCOMER_PLACES = 4
"""Verdicts on one group that enter the ledger, of newcomers: enough to become known within some groups, and few enough
that keys which share one replay gain little."""

VERDICTS_PER_VERSION = 4_096
"""Verdicts of one validator on one version's groups that enter the ledger: more than the groups a busy learner receives
per version, so a validator may replay everything, and none can fill the disk."""

NEWCOMER_VERDICTS_PER_VERSION = 1_024
"""Verdicts of all newcomers together on one version's groups that enter the ledger. Eight make a newcomer known, so a
hundred honest ones may begin with every version."""

WAITING_PLACES = 16
"""Verdicts that wait for one group's receipt. They are not checked yet, so their number bounds the disk they take."""

WAITING_NEWCOMER_VERDICTS = 4_096
"""Verdicts of all newcomers together that wait for receipts: 2 MB. Keys are free, so a bound per key bounds nothing."""

_SOFT_REASONS = frozenset({RejectionReason.ENGINE_MISMATCH, RejectionReason.LOGPROB_MISMATCH})
"""Rejections that another machine's rounding may not share: to see them otherwise is no contradiction. Nor is it
agreement, or who always states one of these would be paid."""


FIGURES = tuple(f"verdicts/{name}" for name in (*(outcome.name.lower() for outcome in CheckOutcome), "refused"))
"""Keys of the metrics log: verdicts by the outcome of their check, and those that were not checked."""


class VerdictIntake:
    """Decides on each verdict: enter it and its check into the ledger, keep it for the receipt, or forget it."""

    def __init__(self, journal: Journal, sender: SigningSender, clock: Clock) -> None:
        self._journal = journal
        self._sender = sender
        self._clock = clock
        self._counts: Counter[str] = Counter(dict.fromkeys(FIGURES, 0))
        self._confirmed: dict[bytes, None] = {}

    @property
    def figures(self) -> dict[str, float]:
        """Verdicts since the start, as `FIGURES`."""
        return dict(self._counts)

    def receive(self, verdicts: Sequence[Opened]) -> list[bytes]:
        """Take verdicts that arrived. Returns the envelopes with their checks, to be published."""
        checks = []
        for opened in verdicts:
            verdict = body_of(opened, Verdict)
            state = self._journal.groups.state_of(verdict.group, verdict.peer, verdict.version)
            known_already = self._journal.verdicts.knows(opened.author, verdict.group)
            if state is None or known_already or opened.author == verdict.peer:
                self._counts["verdicts/refused"] += not known_already
            elif state is GroupState.STORED:
                self._wait(opened, verdict)
            else:
                checks += self._check(opened, verdict)
        return self._sign(checks)

    def settle(self, outcomes: Sequence[Outcome]) -> list[bytes]:
        """Groups have their receipts: keep their replays, and check the verdicts that waited. As `receive`."""
        table, checks = self._journal.verdicts, []
        for outcome in outcomes:
            name, replay = outcome.stored.digest, outcome.replay
            if replay is not None and replay.probes is not None and outcome.state is not ReceiptState.EXPIRED:
                table.keep_replay(name, OwnReplay(replay.reason, replay.tokens, replay.probes))
            waiting = sorted(table.waiting_on(name), key=lambda each: _rank(each.validator, each.newcomer, name))
            if waiting:
                table.drop_waiting(name)
            for each in waiting:
                opened = open_envelope(each.envelope, now=None)
                checks += self._check(opened, body_of(opened, Verdict))
        return self._sign(checks)

    def take_confirmed(self) -> list[bytes]:
        """Validators with a verdict that its check has confirmed since the last call."""
        confirmed, self._confirmed = list(self._confirmed), {}
        return confirmed

    def _wait(self, opened: Opened, verdict: Verdict) -> None:
        """Keep a verdict until the receipt, or refuse it for those that wait with a better rank."""
        table, name = self._journal.verdicts, Digest(verdict.group)
        newcomer = not self._is_known(opened.author)
        if newcomer and table.waiting_of_newcomers() >= WAITING_NEWCOMER_VERDICTS:
            self._counts["verdicts/refused"] += 1
            return
        mine = WaitingVerdict(opened.author, newcomer, opened.raw)
        ranked = sorted([*table.waiting_on(name), mine], key=lambda each: _rank(each.validator, each.newcomer, name))
        table.wait(mine, name, verdict.version)
        dropped = [each.validator for each in ranked[WAITING_PLACES:]]
        table.drop_waiting(name, dropped)
        self._counts["verdicts/refused"] += len(dropped)

    def _check(self, opened: Opened, verdict: Verdict) -> list[VerdictCheck]:
        """Compare a verdict with the learner's replay and enter it, if it may; its check, if it did."""
        table, validator, name = self._journal.verdicts, opened.author, verdict.group
        replay, newcomer = table.replay_of(name), not self._is_known(validator)
        if replay is None or not self._has_place(validator, verdict, newcomer=newcomer):
            self._counts["verdicts/refused"] += 1
            return []
        outcome = _outcome(verdict, validator, replay)
        self._counts[f"verdicts/{outcome.name.lower()}"] += 1
        if outcome is CheckOutcome.FAILED and newcomer:
            return []  # free of charge, so it leaves no trace
        table.enter(validator, name, verdict.version, newcomer=newcomer)
        self._journal.ledger.append(opened.raw)
        if outcome is CheckOutcome.AGREED:
            self._confirmed[validator] = None
        if outcome is not CheckOutcome.UNCLEAR:
            agreed = outcome is CheckOutcome.AGREED
            standing = table.standing(validator).after(self._clock.now(), passed=agreed, failed=not agreed)
            table.set_standing(validator, standing)
        return [VerdictCheck(validator, name, int(outcome), replay.tokens)]

    def _has_place(self, validator: bytes, verdict: Verdict, *, newcomer: bool) -> bool:
        table = self._journal.verdicts
        if table.entered_of(validator, verdict.version) >= VERDICTS_PER_VERSION:
            return False
        if newcomer and table.entered_of_newcomers(verdict.version) >= NEWCOMER_VERDICTS_PER_VERSION:
            return False
        places = NEWCOMER_PLACES if newcomer else KNOWN_PLACES
        return table.entered_on(verdict.group, newcomers=newcomer) < places

    def _is_known(self, validator: bytes) -> bool:
        return self._journal.verdicts.standing(validator).after(self._clock.now()).is_known

    def _sign(self, checks: Sequence[VerdictCheck]) -> list[bytes]:
        """Enter checks into the ledger; the envelopes."""
        step = limits.MAX_VERDICT_CHECKS_PER_MESSAGE
        signed = [self._sender.sign(VerdictChecks(tuple(checks[i : i + step]))) for i in range(0, len(checks), step)]
        for envelope in signed:
            self._journal.ledger.append(envelope)
        return signed


def _outcome(verdict: Verdict, validator: bytes, replay: OwnReplay) -> CheckOutcome:
    if not replay.probes.agree_with(verdict.probes, validator, verdict.group):
        return CheckOutcome.FAILED
    if verdict.passed == (not replay.reason):
        return CheckOutcome.AGREED
    is_soft = verdict.reason in _SOFT_REASONS or replay.reason in _SOFT_REASONS
    return CheckOutcome.UNCLEAR if is_soft else CheckOutcome.CONTRADICTED


def _rank(validator: bytes, newcomer: bool, group: bytes) -> tuple[bool, bytes]:
    """Order of the verdicts on a group that wait: known validators first, then drawn anew for every group."""
    return newcomer, digest("p2prl/verdict-order/v1", validator, group)
