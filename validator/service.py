"""The validator's main loop: sample volunteers' groups, replay them at their declared version, sign verdicts.

It trusts neither volunteers nor the learner's receipts: prompts, tokens and rewards are recomputed from the slot, and
the weights come from the policy manifest that the group names. A verdict is about the volunteer's tokens; rewards are
the learner's work, and a receipt with another reward than the one computed here is told to this machine's owner.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from p2prl.clock import Clock
from p2prl.errors import ConfigError, IntegrityError, MachineError, RemoteProtocolError
from p2prl.models.groups.group_work import GroupWork, Inspection, ReplayTools
from p2prl.models.scorer_port import Scorer
from p2prl.net.process import control
from p2prl.net.process.bridge import NetworkPort
from p2prl.net.process.order_follower import OrderFollower
from p2prl.net.process.run_preparation import RunPreparation
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened, body_of, envelope_digest, open_envelope, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Kind
from p2prl.protocol.ledger_messages import CheckOutcome, LedgerHead, Receipts, Verdict, VerdictChecks
from p2prl.protocol.run_end import RunEnd
from p2prl.protocol.signed_group import GROUP_KINDS, SignedGroup, assemble_group, read_group
from p2prl.swarm import signals
from p2prl.validator.disputes import Disputes
from p2prl.validator.own_ledger import GoodGroup, OwnLedger
from p2prl.validator.replay_queue import AUDITED_SHARE, ReplayQueue, is_selected
from p2prl.validator.replay_weights import ReplayWeights
from p2prl.validator.reward_checks import RewardChecks
from p2prl.validator.verdicts import Judge, judge

_BATCH = 16
"""Groups replayed at once; messages are answered between batches."""

_POLL_S = 0.3
"""Longest wait for messages when there is nothing to replay."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidatorConfig:
    """Settings of a validator."""

    rate: float = AUDITED_SHARE
    """Share of groups replayed, 0..1."""


@dataclass(frozen=True, slots=True)
class Audit:
    """Counts of a validator's work so far. Many fields, because the terminal and `--json` show each."""

    seen: int
    replayed: int
    passed: int
    failed: int
    waiting: int
    """Groups selected and not replayed yet."""
    version: int
    """Newest version on disk; −1 before the first."""
    checks_agreed: int = 0
    """Verdicts that agree with the learner's own replay, as the learner has signed; they earn credit."""
    checks_contradicted: int = 0
    """Verdicts that contradict it: a third validator decides."""
    checks_failed: int = 0
    """Verdicts whose log-probs are not those of the learner's replay."""
    rewards_agreed: int = 0
    """Groups whose mean reward is that of the learner's receipt."""
    rewards_disputed: int = 0
    """Groups whose mean reward is one that no failed answer explains."""
    rewards_unclear: int = 0
    """Groups whose mean reward proves nothing: answers failed here, or may have failed at the learner."""
    own_receipts: int = 0
    """Groups with a receipt in the validator's own ledger; 0 without one."""
    own_tokens: int = 0
    """Completion tokens of these groups."""
    resting: str = ""
    """Why it rests, a sentence; empty while it works."""
    files: tuple[int, int] = (0, 0)
    """(bytes held, bytes in all) of the run's files and data."""


@dataclass(slots=True)
class _Counts:
    seen: int = 0
    replayed: int = 0
    passed: int = 0
    checks: Counter[int] = field(default_factory=Counter)
    """Checks of own verdicts, by `CheckOutcome`."""
    rewards: RewardChecks = field(default_factory=RewardChecks)
    compares_rewards: bool = True
    """False after rewards could not be computed here."""
    told_full: bool = False
    """Whether the user knows that the own ledger is full."""


class Validator:
    """One validator of one run. It passes messages between queue, weights, disputes and its own ledger, because
    these do not know each other."""

    def __init__(
        self,
        *,
        identity: Identity,
        run: Digest,
        config: ValidatorConfig,
        clock: Clock,
        preparation: RunPreparation[ReplayTools],
        on_audit: Callable[[Audit], None],
        on_notice: Callable[[str], None],
        judge: Judge = judge,
        own_ledger: OwnLedger | None = None,
    ) -> None:
        """`preparation` turns the run's files into a scorer. `on_notice` gets messages for the user. `judge` makes the
        verdicts; experiments with dishonest validators replace it. `own_ledger` gets a receipt of every good group."""
        self._identity = identity
        self._run = run
        self._config = config
        self._clock = clock
        self._preparation = preparation
        self._on_audit = on_audit
        self._on_notice = on_notice
        self._judge = judge
        self._own_ledger = own_ledger
        self._disputes = Disputes(identity.public_key)
        self._queue = ReplayQueue()
        self._weights = ReplayWeights()
        self._counts = _Counts()
        self._stopping = False
        self._run_end = RunEnd()
        self.owner = OrderFollower(clock)
        """Where the owner's orders are given; a rest frees the scorer's memory and may leave the network."""

    def stop(self) -> None:
        """Return from `run` after the current batch."""
        self._stopping = True

    def run(self, network: NetworkPort) -> bool:
        """Validate until `stop` is called, or the learner has ended the run and no group waits. True in the latter
        case."""
        self.owner.attach(network)
        try:
            for wait_s in self.owner.turns(self._preparation, is_due=self._goes_on, poll_s=_POLL_S):
                self.turn(network, wait_s=wait_s)
            return self._is_over()
        finally:
            network.close()
            if self._own_ledger is not None:
                if self._is_over() and self._own_ledger.groups:
                    self._own_ledger.end(step=self._weights.newest_step)
                self._own_ledger.close()
            if self._preparation.prepared is not None:
                self._preparation.prepared.work.close()
                self._preparation.prepared.baselines.save()

    def turn(self, network: NetworkPort, *, wait_s: float) -> None:
        """Replay a batch, then take messages; waits for them only when there was nothing to replay."""
        order = self.owner.order
        if order.rests and (prepared := self._preparation.prepared) is not None:
            self._weights.free(prepared.scorer)
        self.owner.follow_network(order)
        rest_s = self.owner.rest_s()
        worked = not order.rests and not rest_s and self._replay(network)
        for message in network.poll(0.0 if worked else min(rest_s, wait_s) or wait_s):
            self._receive(message, network)
        self._preparation.answer(network)
        self._on_audit(self._audit(network))

    def _goes_on(self) -> bool:
        return not self._stopping and not (self._is_over() and not len(self._queue))

    def _is_over(self) -> bool:
        return self._run_end.is_over(self._clock.now())

    def _audit(self, network: NetworkPort) -> Audit:
        counts = self._counts
        return Audit(
            seen=counts.seen,
            replayed=counts.replayed,
            passed=counts.passed,
            failed=counts.replayed - counts.passed,
            waiting=len(self._queue),
            version=self._weights.newest_version,
            checks_agreed=counts.checks[CheckOutcome.AGREED],
            checks_contradicted=counts.checks[CheckOutcome.CONTRADICTED],
            checks_failed=counts.checks[CheckOutcome.FAILED],
            rewards_agreed=self._counts.rewards.agreed,
            rewards_disputed=self._counts.rewards.disputed,
            rewards_unclear=self._counts.rewards.unclear,
            own_receipts=0 if self._own_ledger is None else self._own_ledger.groups,
            own_tokens=0 if self._own_ledger is None else self._own_ledger.tokens,
            resting=self.owner.order.reason if self.owner.order.rests else "",
            files=network.status.files if network.status is not None else (0, 0),
        )

    def _receive(self, message: control.FromNetwork, network: NetworkPort) -> None:
        match message:
            case control.RunKnown() | control.FileReady():
                self._preparation.take(message)
            case control.VersionReady(digest=digest, policy=manifest, path=path):
                self._weights.add(Digest(digest), manifest, Path(path))
                self._run_end.on_policy(manifest.step)
            case signals.VersionAnnounced(step=step):
                self._run_end.on_policy(step)
            case control.EnvelopeArrived(envelope=raw):
                self._on_envelope(open_envelope(raw, now=None), network)
            case control.GroupFetched(envelope=header, path=path):
                with contextlib.suppress(FileNotFoundError, RemoteProtocolError):  # expired, or malformed: no verdict
                    self._queue.add(read_group(header, Path(path).read_bytes()))
                network.send(signals.ReleaseGroup(envelope_digest(header)))
            case control.Warned(text=text):
                self._on_notice(text)
            case _:
                pass

    def _on_envelope(self, opened: Opened, network: NetworkPort) -> None:
        if opened.kind in GROUP_KINDS:
            self._counts.seen += 1
            if is_selected(opened.digest, self._identity.secret_seed, self._config.rate):
                self._select(opened, network)
            else:
                self._disputes.keep(opened)
        elif opened.kind is Kind.VERDICT_CHECKS:
            checks = body_of(opened, VerdictChecks).checks
            me = self._identity.public_key
            self._counts.checks.update(check.outcome for check in checks if check.validator == me)
            for group in self._disputes.groups_to_replay(checks, self._clock.now()):
                self._select(group, network)
        elif opened.kind is Kind.RECEIPTS:
            receipts = body_of(opened, Receipts).receipts
            for receipt in receipts:
                self._tell_dispute(self._counts.rewards.receipt(receipt), receipt.group)
            if (prepared := self._preparation.prepared) is not None:
                mine = prepared.scorer.engine_class
                for group in self._disputes.groups_of_class(receipts, mine, self._clock.now()):
                    self._select(group, network)
        elif opened.kind is Kind.LEDGER_HEAD:
            self._run_end.on_head(body_of(opened, LedgerHead), opened.sent_ms, now=self._clock.now())

    def _select(self, opened: Opened, network: NetworkPort) -> None:
        """Queue a group that has no receipt here for its replay; one too large for an envelope is fetched first."""
        if self._own_ledger is not None and self._own_ledger.holds(opened.digest):
            return
        if opened.kind is Kind.GROUP_HEADER:
            network.send(signals.FetchGroup(opened.digest))
        else:
            self._queue.add(assemble_group(opened, b""))

    def _replay(self, network: NetworkPort) -> bool:
        """Replay one batch of one policy that is on disk, and request missing policies. Returns whether it replayed
        any."""
        prepared = self._preparation.prepared
        if prepared is None:
            return False
        now, wanted = self._clock.now(), self._queue.policies()
        self._weights.forget_requests(besides=frozenset(wanted))
        for policy in wanted:
            if policy in self._weights and self._load(prepared.scorer, policy):
                self._replay_batch(prepared, policy, network)
                return True
            if self._weights.ask(policy, now):
                network.send(signals.FetchPolicy(policy))
            elif self._weights.is_overdue(policy, now) or self._is_over():
                self._queue.drop(policy)
                self._weights.stop_waiting(policy)
        return False

    def _replay_batch(self, tools: ReplayTools, policy: Digest, network: NetworkPort) -> None:
        began = self._clock.now()
        groups = self._queue.take(policy, _BATCH)
        judged = self._judge(tools, self._weights.manifest_of(policy), groups, validator=self._identity.public_key)
        for signed, (verdict, _) in zip(groups, judged, strict=True):
            self._counts.replayed += 1
            self._counts.passed += verdict.passed
            if not verdict.passed:
                self._on_notice(f"group {signed.digest.hex()[:8]} failed its replay: {verdict.reason}")
            network.send(signals.Publish(seal(self._identity, verdict, run=self._run, now=self._clock.now())))

        passed = [
            (signed, verdict, seen) for signed, (verdict, seen) in zip(groups, judged, strict=True) if verdict.passed
        ]
        self._keep_receipts(self._score(tools.work, passed))
        self.owner.computed(self._clock.now() - began)

    def _score(self, work: GroupWork, passed: Sequence[tuple[SignedGroup, Verdict, Inspection]]) -> list[GoodGroup]:
        """Score all groups together, then compare: one author's slow answers cost the others nothing.

        Returns those that could be scored.
        """
        if not self._counts.compares_rewards:
            return []
        try:
            started = [
                (signed, verdict, work.start_rewards(seen.assignment, seen.token_ids, account=signed.author))
                for signed, verdict, seen in passed
                if work.scores(seen.assignment)
            ]
            scored = [(signed, verdict, pending()) for signed, verdict, pending in started]
        except (ConfigError, MachineError, IntegrityError) as error:
            # All of these may be the learner's doing, and a verdict needs no reward.
            self._counts.compares_rewards = False
            self._on_notice(f"the learner's rewards are no longer checked, only tokens: {error}")
            return []
        for signed, _, rewards in scored:
            self._tell_dispute(self._counts.rewards.scored(signed.digest, rewards), signed.digest)
        return [
            GoodGroup(signed, verdict.tokens, sum(rewards.values) / len(rewards.values))
            for signed, verdict, rewards in scored
        ]

    def _keep_receipts(self, good: Sequence[GoodGroup]) -> None:
        """Write receipts into the own ledger, if there is one."""
        ledger = self._own_ledger
        if ledger is None or not good:
            return
        ledger.enter(good, step=self._weights.newest_step)
        if ledger.is_full and not self._counts.told_full:
            self._counts.told_full = True
            self._on_notice("the validator's own ledger is as large as its disk allows: it takes no more receipts")

    def _tell_dispute(self, agreed: bool, group: bytes) -> None:
        """Tell of the first alone: a learner that scores otherwise does so in every group."""
        if not agreed and self._counts.rewards.disputed == 1:
            self._on_notice(
                f"group {group.hex()[:8]}: the learner's receipt gives another reward than this machine computes"
            )

    def _load(self, scorer: Scorer, policy: Digest) -> bool:
        try:
            return self._weights.load(scorer, policy)
        except IntegrityError as error:
            self._on_notice(f"version {self._weights.manifest_of(policy).version} cannot be used: {error}")
            self._queue.drop(policy)
            return False
