"""Groups that a learner refuses, against this machine's own replay of them: who is wrong, and when to stop. Pure.

An honest learner rejects less than one honest group in a thousand, so eight of the newest 64 are no chance. From then
on the volunteer samples one slot at a time, and replays some of the refused groups: it has the weights, the seeds and
the texts. It stops when its replays contradict the receipts, when they agree with them, or, where no replay was
possible, when the learner has refused one group after another without a single one in between that it took.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from p2prl.protocol.ledger_messages import Receipt, ReceiptState
from p2prl.protocol.rejection_reasons import RejectionReason

WINDOW = 64
"""Newest judged groups that count."""

DOUBTED_AT = 8
"""Refused groups among them from which on the volunteer is slow, and replays. At a false reject in a thousand, that
many come together once in 10^14 windows."""

STOPPED_AT = 16
"""Groups refused one after another at which it stops without a replay: twice as many, as it cannot tell whose fault
it is."""

REPLAYED = 3
"""Refused groups that are replayed, the newest first."""

DECIDED_BY = 2
"""Replays that settle it, if none says otherwise: one could be a group on which two kinds of card differ."""

VOIDED_AT = 256
"""Groups voided one after another, without a single credited one, at which it stops. A wrong group voids the next 32:
with eight of those it would have been doubted before."""

_NOT_REFUSALS = frozenset({RejectionReason.DUPLICATE_SLOT, RejectionReason.WITHHELD_SLOTS, RejectionReason.EXCLUDED})
"""An old copy of the spool, the price of slots that were lost or wrong, and an exclusion, which ends a volunteer by
itself: none says that this group is wrong, and the first two pass."""


class Replayed(Enum):
    """What a replay on this machine says about a refused group."""

    RIGHT = "right"
    """Every token is what the policy samples: it contradicts the receipt."""
    WRONG = "wrong"
    """The learner is right."""
    UNDECIDED = "undecided"
    """The receipt's reason is not about what a replay finds."""
    IMPOSSIBLE = "impossible"
    """The weights or the group are gone, or this machine cannot hold them now."""


class Fault(Enum):
    """Whose fault refused work is."""

    LEARNER = "learner"
    """Its receipts contradict this machine's replay."""
    MACHINE = "machine"
    """This machine computes wrong numbers, and its own replay says so."""
    UNKNOWN = "unknown"
    """Nothing of this machine is accepted, and no replay could tell why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    """A group that was refused."""

    group: bytes
    reason: str
    receipts: bytes
    """The envelope, signed by the learner, that says so."""


@dataclass(slots=True)
class Refusals:
    """What the learner did with this machine's groups since it started."""

    judged: int = 0
    """Groups that it credited or refused."""
    refused: int = 0
    """Of these, refused."""
    in_a_row: int = 0
    """Refused since the last one that it credited."""
    voided_in_a_row: int = 0
    """Rejected since then for what other slots had cost, and not for themselves."""
    replays: dict[bytes, Replayed] = field(default_factory=dict)
    """By group."""
    newest: deque[Refused] = field(default_factory=lambda: deque(maxlen=WINDOW))
    """Refused groups, oldest first."""
    _window: deque[bool] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def on_judged(self, receipt: Receipt, receipts: bytes) -> None:
        """The learner's receipt of one of this machine's groups; `receipts` is the envelope that it came in."""
        is_refused = receipt.state == ReceiptState.REJECTED
        if receipt.state == ReceiptState.EXPIRED:
            return
        if is_refused and receipt.reason in _NOT_REFUSALS:
            self.voided_in_a_row += receipt.reason == RejectionReason.WITHHELD_SLOTS
            return
        self.judged += 1
        self._window.append(is_refused)
        if not is_refused:
            self.in_a_row = self.voided_in_a_row = 0
            if not self.is_doubtful:
                self.replays.clear()
            return
        self.refused += 1
        self.in_a_row += 1
        self.newest.append(Refused(group=receipt.group, reason=receipt.reason, receipts=receipts))

    @property
    def is_doubtful(self) -> bool:
        """Whether so much was refused that the volunteer should sample little until it knows more."""
        return sum(self._window) >= DOUBTED_AT

    def to_replay(self) -> Refused | None:
        """The group to replay next; None when there is none, or they have been replayed."""
        if not self.is_doubtful or len(self.replays) >= REPLAYED:
            return None
        return next((each for each in reversed(self.newest) if each.group not in self.replays), None)

    def on_replay(self, group: bytes, found: Replayed) -> None:
        """What a replay of a refused group found."""
        self.replays[group] = found

    def fault(self) -> Fault | None:
        """Whose fault it is; None while the volunteer should go on."""
        if self.voided_in_a_row >= VOIDED_AT:
            return Fault.UNKNOWN
        if not self.is_doubtful:
            return None
        found = list(self.replays.values())
        right, wrong = found.count(Replayed.RIGHT), found.count(Replayed.WRONG)
        if right >= DECIDED_BY and not wrong:
            return Fault.LEARNER
        if wrong >= DECIDED_BY and not right:
            return Fault.MACHINE
        return Fault.UNKNOWN if self.in_a_row >= STOPPED_AT and self.to_replay() is None else None

    def reasons(self) -> str:
        """The reasons of the newest refusals, most frequent first, as codes."""
        codes = [each.reason for each in self.newest]
        known = [reason for reason in RejectionReason if reason in codes]
        other = ["an unknown reason"] if len(set(codes)) > len(known) else []
        return ", ".join([*sorted(known, key=lambda reason: -codes.count(reason)), *other])
