"""Disputes between the learner and another validator: find the group, so that this validator can replay it and decide.

The learner signs the outcome of its check of every verdict. Where it says that learner and validator have both replayed
a group and disagree, a third validator is needed (docs/protocol.md, section 12). Where it rejects a group because the
engines differ too much, a validator of the group's own class can tell whether the machine or the pair of classes is the
cause. The groups that were not selected for replay are kept for a while for this. Pure, bounded in bytes and in replays
a minute.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened
from p2prl.protocol.ledger_messages import CheckOutcome, Receipt, VerdictCheck
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.rollout_group import EngineClass, RolloutGroup
from p2prl.swarm.token_buckets import KeyedBuckets, Rate

_RECENT_BYTES = 32 * 1024 * 1024
"""Envelopes of groups kept: minutes of a busy run, within which the learner's checks arrive."""

_REPLAYS = Rate(per_s=1 / 8, burst=16.0)
"""Replays for disputes. A contradiction costs its validator a forward pass, but one may ask a thousand others for one
each."""


class Disputes:
    """Recent groups without a verdict of this validator, by envelope digest."""

    def __init__(self, own_key: bytes) -> None:
        self._own_key = own_key
        self._recent: OrderedDict[Digest, Opened] = OrderedDict()
        self._bytes = 0
        self._budget = KeyedBuckets(_REPLAYS, capacity=1)

    def keep(self, opened: Opened) -> None:
        """Remember a group that was not selected; the oldest makes way."""
        if opened.digest not in self._recent:
            self._recent[opened.digest] = opened
            self._bytes += len(opened.raw)
        while self._bytes > _RECENT_BYTES:
            _, oldest = self._recent.popitem(last=False)
            self._bytes -= len(oldest.raw)

    def groups_to_replay(self, checks: tuple[VerdictCheck, ...], now: float) -> Iterator[Opened]:
        """The groups in dispute that this validator has kept and may replay now."""
        for check in checks:
            group = Digest(check.group)
            is_dispute = check.outcome == CheckOutcome.CONTRADICTED and check.validator != self._own_key
            if is_dispute and group in self._recent and self._budget.take(None, now):
                yield self._take(group)

    def groups_of_class(self, receipts: tuple[Receipt, ...], mine: EngineClass, now: float) -> Iterator[Opened]:
        """The groups rejected as `engine_mismatch` that this validator has kept, may replay now, and can judge better
        than the learner, since they declare its own class. A group too large for an envelope declares it in its body,
        which is not here: it is judged whatever its class."""
        for receipt in receipts:
            kept = self._recent.get(Digest(receipt.group))
            if kept is None or receipt.reason != RejectionReason.ENGINE_MISMATCH:
                continue
            body = kept.body
            if isinstance(body, RolloutGroup) and not body.engine.matches(mine):
                continue
            if self._budget.take(None, now):
                yield self._take(kept.digest)

    def _take(self, group: Digest) -> Opened:
        opened = self._recent.pop(group)
        self._bytes -= len(opened.raw)
        return opened
