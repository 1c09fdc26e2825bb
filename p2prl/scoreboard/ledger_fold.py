"""The leaderboard as a pure fold over the ledger: who contributed what, recomputable by anyone.

The rules, in the order they bind (docs/leaderboard.md states them for readers):

* Every group has one state. The first receipt of a group counts; a later one is ignored and counted as ignored.
* A verdict counts once per (validator, group), only for a group that has a receipt, never for one's own work, and
  earns at most the tokens the learner's receipt states: what a stranger claims alone is worth nothing. A verdict
  that precedes its receipt waits for it, so the order in which the two reach the ledger does not matter.
* What makes no sense (an impossible number, an unknown state) is ignored and counted, never an error: one bad line
  by one peer must not take down every board of the run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from p2prl.protocol import ledger_chain, limits
from p2prl.protocol.digests import DIGEST_BYTES, Digest
from p2prl.protocol.envelope import Opened
from p2prl.protocol.identity import PUBLIC_KEY_BYTES
from p2prl.protocol.ledger_messages import Receipt, Receipts, ReceiptState, Verdict
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.scoreboard.totals import MICRO, Person, Step, Validator, counted, summed, with_receipt_time

OTHER_REASON = "other"
"""Stands for every reason code this version does not know: a receipt's free text is never shown."""

_KNOWN_REASONS = frozenset(reason.value for reason in RejectionReason)
_MAX_GROUP_TOKENS = limits.MAX_GROUP_SIZE * limits.MAX_COMPLETION_TOKENS
_MAX_REWARD = 1e6
"""Beyond any reward specification; bounds the sums that a hostile learner could otherwise blow up."""
_CREDITED = (ReceiptState.VERIFIED, ReceiptState.CREDITED_BY_SAMPLING)


@dataclass(frozen=True, slots=True)
class BoardState:
    """The board at one height. Mappings are never changed after they were handed out."""

    run: bytes
    learner: bytes
    parameters: int
    """Parameters of the run's model; scales tokens to credit."""
    height: int
    """Ledger entries folded in."""
    head: Digest
    """Digest of the newest entry: two boards that agree on it agree on everything."""
    people: Mapping[bytes, Person]
    """By public key."""
    validators: Mapping[bytes, Validator]
    """By public key."""
    steps: Mapping[int, Step]
    """By learner step, in the order of their first receipt."""
    ignored: Mapping[str, int]
    """Ledger lines that count for nothing, by rule."""
    waiting_verdicts: int
    """Verdicts on groups that have no receipt yet."""

    def credit(self, tokens: int) -> float:
        """Tokens as petaFLOP of checked forward work: tokens × 2 × parameters / 10^15."""
        return tokens * 2 * self.parameters / 1e15


class Board:
    """Follows one run's chain from its first entry and keeps the sums."""

    def __init__(self, *, run: bytes, learner: bytes, parameters: int) -> None:
        self._run = run
        self._learner = learner
        self._parameters = parameters
        self._height = 0
        self._head = ledger_chain.GENESIS
        self._people: dict[bytes, Person] = {}
        self._validators: dict[bytes, Validator] = {}
        self._steps: dict[int, Step] = {}
        self._ignored: dict[str, int] = {}
        self._settled: dict[bytes, tuple[bytes, int, int, bool]] = {}
        self._waiting: dict[bytes, list[tuple[bytes, int, Verdict]]] = {}
        self._judged: set[tuple[bytes, bytes]] = set()
        self._state: BoardState | None = None

    @property
    def height(self) -> int:
        """Entries folded in."""
        return self._height

    @property
    def head(self) -> Digest:
        """Digest of the newest entry."""
        return self._head

    def follow(self, raw: bytes) -> Opened:
        """Check that `raw` is the chain's next entry and fold it in.

        Raises `IntegrityError` when it does not follow and `RemoteProtocolError` when it is malformed or signed by
        the wrong key; the board is unchanged then.
        """
        opened, head = ledger_chain.follow(
            raw, height=self._height, head=self._head, run=self._run, learner=self._learner
        )
        if isinstance(opened.body, Receipts):
            self._add_receipts(opened.body, opened.sent_ms)
        elif isinstance(opened.body, Verdict):
            self._add_verdict(opened.author, opened.sent_ms, opened.body)
        self._height, self._head = self._height + 1, head
        self._state = None
        return opened

    def state(self) -> BoardState:
        """The sums so far."""
        if self._state is None:
            self._state = BoardState(
                run=self._run,
                learner=self._learner,
                parameters=self._parameters,
                height=self._height,
                head=self._head,
                people=MappingProxyType(dict(self._people)),
                validators=MappingProxyType(dict(self._validators)),
                steps=MappingProxyType(dict(self._steps)),
                ignored=MappingProxyType(dict(sorted(self._ignored.items()))),
                waiting_verdicts=sum(len(verdicts) for verdicts in self._waiting.values()),
            )
        return self._state

    # --- receipts ----------------------------------------------------------------------------------------------

    def _add_receipts(self, body: Receipts, sent_ms: int) -> None:
        for receipt in body.receipts:
            if not 0 <= body.step < 1 << 48 or not _is_sound(receipt):
                self._ignore("impossible_receipt")
            elif receipt.group in self._settled:
                self._ignore("second_receipt")
            else:
                self._settle(receipt, body.step, sent_ms)

    def _settle(self, receipt: Receipt, step: int, sent_ms: int) -> None:
        credited = receipt.state in _CREDITED
        self._settled[receipt.group] = (receipt.peer, receipt.version, receipt.tokens, credited)
        person = self._people.get(receipt.peer) or Person(first_step=step, last_step=step, last_ms=sent_ms)
        self._people[receipt.peer] = _with_receipt(with_receipt_time(person, step=step, sent_ms=sent_ms), receipt)
        self._steps[step] = _with_group(self._steps.get(step) or Step(last_ms=sent_ms), receipt, sent_ms)
        for validator, verdict_ms, verdict in self._waiting.pop(receipt.group, ()):
            self._count_verdict(validator, verdict_ms, verdict)

    # --- verdicts ----------------------------------------------------------------------------------------------

    def _add_verdict(self, validator: bytes, sent_ms: int, verdict: Verdict) -> None:
        if len(verdict.group) != DIGEST_BYTES or not 0 <= verdict.tokens <= _MAX_GROUP_TOKENS:
            self._ignore("impossible_verdict")
        elif (validator, verdict.group) in self._judged:
            self._ignore("second_verdict")
        else:
            self._judged.add((validator, verdict.group))
            if verdict.group in self._settled:
                self._count_verdict(validator, sent_ms, verdict)
            else:
                self._waiting.setdefault(verdict.group, []).append((validator, sent_ms, verdict))

    def _count_verdict(self, validator: bytes, sent_ms: int, verdict: Verdict) -> None:
        peer, version, tokens, credited = self._settled[verdict.group]
        if validator == peer:
            self._ignore("verdict_on_own_work")
            return
        if (verdict.peer, verdict.version) != (peer, version):
            self._ignore("verdict_on_another_group")
            return
        tally = self._validators.get(validator) or Validator(last_ms=sent_ms)
        self._validators[validator] = replace(
            tally,
            last_ms=max(tally.last_ms, sent_ms),
            passed_groups=tally.passed_groups + verdict.passed,
            failed_groups=tally.failed_groups + (not verdict.passed),
            disputed_groups=tally.disputed_groups + (credited and not verdict.passed),
            tokens=tally.tokens + min(verdict.tokens, tokens),
        )

    def _ignore(self, rule: str) -> None:
        self._ignored[rule] = self._ignored.get(rule, 0) + 1


def _is_sound(receipt: Receipt) -> bool:
    return (
        len(receipt.group) == DIGEST_BYTES
        and len(receipt.peer) == PUBLIC_KEY_BYTES
        and 0 <= receipt.version < 1 << 48
        and receipt.state in _STATES
        and 0 <= receipt.tokens <= _MAX_GROUP_TOKENS
        and 0 <= receipt.completions <= limits.MAX_GROUP_SIZE
        and math.isfinite(receipt.reward)
        and abs(receipt.reward) <= _MAX_REWARD
    )


_STATES = frozenset(int(state) for state in ReceiptState)


def _with_receipt(person: Person, receipt: Receipt) -> Person:
    reason = receipt.reason if receipt.reason in _KNOWN_REASONS else OTHER_REASON
    if receipt.state == ReceiptState.REJECTED:
        return replace(person, rejected=counted(person.rejected, reason))
    if receipt.state == ReceiptState.EXPIRED:
        return replace(person, expired=counted(person.expired, reason))
    verified = receipt.state == ReceiptState.VERIFIED
    return replace(
        person,
        verified_groups=person.verified_groups + verified,
        sampled_groups=person.sampled_groups + (not verified),
        completions=person.completions + receipt.completions,
        tokens=person.tokens + receipt.tokens,
        reward_micros=person.reward_micros + round(receipt.reward * MICRO) * receipt.completions,
    )


def _with_group(step: Step, receipt: Receipt, sent_ms: int) -> Step:
    last_ms = max(step.last_ms, sent_ms)
    if receipt.state == ReceiptState.REJECTED:
        return replace(step, last_ms=last_ms, rejected_groups=step.rejected_groups + 1)
    if receipt.state == ReceiptState.EXPIRED:
        return replace(step, last_ms=last_ms, expired_groups=step.expired_groups + 1)
    micros = round(receipt.reward * MICRO)
    return replace(
        step,
        last_ms=last_ms,
        groups=step.groups + 1,
        completions=step.completions + receipt.completions,
        tokens=step.tokens + receipt.tokens,
        reward_micros=step.reward_micros + micros * receipt.completions,
        reward_squares=step.reward_squares + micros * micros,
        group_reward_micros=step.group_reward_micros + micros,
        versions=summed(step.versions, {receipt.version: 1}),
    )
