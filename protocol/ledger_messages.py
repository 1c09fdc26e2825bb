"""Signed messages about credit: storage receipts, receipts, verdicts and their checks, and ledger heads.

A group goes through them in this order. The learner stores it (`StorageReceipt`), checks it (`Receipt`) and appends the
receipt to its ledger; validators replay groups (`Verdict`), and the learner compares each with its own replay
(`VerdictCheck`); a `LedgerHead` signs the ledger's length and last digest.
"""

from __future__ import annotations

import math
from enum import IntEnum

from p2prl.errors import RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.digests import DIGEST_BYTES
from p2prl.protocol.identity import PUBLIC_KEY_BYTES
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.wire_codec import Wire


class StorageReceipt(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The signer has these groups on disk: their volunteer may stop offering them."""

    groups: tuple[bytes, ...]


class ReceiptState(IntEnum):
    """Final state of a delivered group. Every stored group gets exactly one."""

    VERIFIED = 1
    CREDITED_BY_SAMPLING = 2
    REJECTED = 3
    EXPIRED = 4


class Receipt(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Outcome of one group."""

    group: bytes
    """Envelope digest of the group."""
    peer: bytes
    """Public key of the volunteer."""
    version: int
    slot: int
    state: int
    reason: str
    """Empty when verified; otherwise a code of `RejectionReason`."""
    tokens: int
    """Number of verified completion tokens. Credit is linear in it."""
    completions: int
    reward: float
    """Mean reward of the group, recomputed by the learner."""

    def check(self) -> None:
        """Raise `RemoteProtocolError` for values that no learner of this wire version writes."""
        _check_outcome("receipt", self.group, self.peer, self.version, self.reason, self.tokens)
        if not 0 <= self.slot < 1 << 32 or not 0 <= self.completions <= limits.MAX_GROUP_SIZE:
            raise RemoteProtocolError("receipt: slot or completions out of range")
        if self.state not in _STATES:
            raise RemoteProtocolError(f"receipt: unknown state {self.state}")
        if not math.isfinite(self.reward):
            raise RemoteProtocolError("receipt: the reward is not a number")


class Receipts(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Batch of receipts from one learner step."""

    step: int
    receipts: tuple[Receipt, ...]

    def check(self) -> None:
        """Raise `RemoteProtocolError` for too many receipts or an unusable one."""
        if not 0 <= self.step < 1 << 48:
            raise RemoteProtocolError("receipts: step out of range")
        if len(self.receipts) > limits.MAX_RECEIPTS_PER_MESSAGE:
            raise RemoteProtocolError(f"{len(self.receipts)} receipts in one message")
        for receipt in self.receipts:
            receipt.check()


class Verdict(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Outcome of a validator's replay of one group, under the policy version that the group declares."""

    group: bytes
    """Envelope digest of the group."""
    peer: bytes
    """Public key of the volunteer."""
    version: int
    passed: bool
    reason: str
    """Empty exactly when passed; otherwise a code of `RejectionReason`."""
    tokens: int
    """Number of replayed completion tokens."""
    mismatched: int
    """Tokens whose margin exceeds the tolerance of the group's engine class."""
    worst_margin: float
    probes: bytes = b""
    """Proof of the replay: little-endian float16 log-probs of the tokens that `verdict_probes.probe_places` chooses.
    Empty when nothing was replayed."""

    def check(self) -> None:
        """Raise `RemoteProtocolError` for values that no validator of this wire version writes."""
        _check_outcome("verdict", self.group, self.peer, self.version, self.reason, self.tokens)
        if self.passed != (not self.reason):
            raise RemoteProtocolError("verdict: a group passes exactly when there is no reason against it")
        if not 0 <= self.mismatched <= self.tokens:
            raise RemoteProtocolError("verdict: more tokens mismatched than were replayed")
        if not math.isfinite(self.worst_margin):
            raise RemoteProtocolError("verdict: the worst margin is not a number")
        if len(self.probes) % 2 or len(self.probes) > 2 * limits.MAX_VERDICT_PROBES:
            raise RemoteProtocolError("verdict: probes of an impossible size")


class CheckOutcome(IntEnum):
    """Result of comparing a verdict with the learner's own replay of the group."""

    AGREED = 1
    """The probes are those of a replay, and the verdict is the learner's."""
    CONTRADICTED = 2
    """The probes are those of a replay, and the verdict is not the learner's. A third validator decides."""
    FAILED = 3
    """The probes are not those of a replay."""
    UNCLEAR = 4
    """The probes are those of a replay, and the verdict differs by what rounding explains: no check either way."""


class VerdictCheck(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Outcome of the learner's check of one verdict that is in the ledger."""

    validator: bytes
    """Public key of the validator."""
    group: bytes
    """Envelope digest of the group."""
    outcome: int
    tokens: int
    """Completion tokens of the group that the learner replayed: the most that the verdict earns."""

    def check(self) -> None:
        """Raise `RemoteProtocolError` for values that no learner of this wire version writes."""
        if len(self.validator) != PUBLIC_KEY_BYTES or len(self.group) != DIGEST_BYTES:
            raise RemoteProtocolError("verdict check: no usable validator or group")
        if self.outcome not in _OUTCOMES:
            raise RemoteProtocolError(f"verdict check: unknown outcome {self.outcome}")
        if not 0 <= self.tokens <= limits.MAX_GROUP_SIZE * limits.MAX_COMPLETION_TOKENS:
            raise RemoteProtocolError(f"verdict check: {self.tokens} tokens are out of range")


class VerdictChecks(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Batch of checks of verdicts, signed by the learner."""

    checks: tuple[VerdictCheck, ...]

    def check(self) -> None:
        """Raise `RemoteProtocolError` for too many checks or an unusable one."""
        if len(self.checks) > limits.MAX_VERDICT_CHECKS_PER_MESSAGE:
            raise RemoteProtocolError(f"{len(self.checks)} verdict checks in one message")
        for check in self.checks:
            check.check()


class LedgerHead(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The learner's signature on its ledger. Two heads of one height that differ prove equivocation."""

    height: int
    """Number of entries."""
    head: bytes
    """Digest of the last entry."""
    step: int
    finished: bool
    """The run is over: no more groups will be used."""


class Countersignature(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A peer has followed the run's ledger from its first entry up to a head that the learner signed.

    It holds that head, so two countersignatures prove a fork when the learner signed two histories.
    """

    head: bytes
    """The envelope of the learner's `LedgerHead`."""


_STATES = frozenset(int(state) for state in ReceiptState)
_OUTCOMES = frozenset(int(outcome) for outcome in CheckOutcome)
_REASONS = frozenset({"", *(str(reason) for reason in RejectionReason)})


def _check_outcome(kind: str, group: bytes, peer: bytes, version: int, reason: str, tokens: int) -> None:
    """Check the fields that receipts and verdicts share."""
    if len(group) != DIGEST_BYTES or len(peer) != PUBLIC_KEY_BYTES:
        raise RemoteProtocolError(f"{kind}: no usable group or peer")
    if not 0 <= version < 1 << 48:
        raise RemoteProtocolError(f"{kind}: version out of range")
    if not 0 <= tokens <= limits.MAX_GROUP_SIZE * limits.MAX_COMPLETION_TOKENS:
        raise RemoteProtocolError(f"{kind}: {tokens} tokens are out of range")
    if reason not in _REASONS:
        raise RemoteProtocolError(f"{kind}: unknown reason")
