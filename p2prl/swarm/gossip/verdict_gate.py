"""Gate for the verdicts of others: a node passes on those on groups it knows, within rates of their signers. Pure.

A verdict's signature costs its sender nothing and its readers a check each, so a verdict on a group that nobody has
seen stops here, at the first hop. A node knows a group when it has passed it on, or when the learner has named it in a
storage receipt or a receipt. A verdict may overtake its group on the way: it waits in a bounded room and is passed on
once the group is known. Rates are by signer, and keys are free, so all validators without standing share one more.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence

from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened, body_of
from p2prl.protocol.identity import PeerId
from p2prl.protocol.ledger_messages import Receipts, StorageReceipt, Verdict, VerdictChecks
from p2prl.protocol.signed_group import GROUP_KINDS
from p2prl.protocol.standing import StandingTable
from p2prl.swarm.gossip.deduplication import RecentDigests
from p2prl.swarm.token_buckets import KeyedBuckets, Rate

_GROUPS = 65_536
"""Groups remembered, half of them at least: hours of a busy run, 3 MB beside the digests that gossip remembers."""

_VALIDATORS = 4_096
"""Validators whose standing is remembered."""

_HELD = 1_024
"""Verdicts that wait for their group: 500 bytes each."""

_HELD_PER_VALIDATOR = 64
"""Of one validator: several batches."""

_RATE = Rate(per_s=16.0, burst=256.0)
"""Of one validator: more than the groups a swarm of a hundred volunteers delivers, with an outage caught up."""

_NEWCOMERS_RATE = Rate(per_s=64.0, burst=1_024.0)
"""Of all validators without standing together. A flood of them costs a few percent of one core."""

_FRESH_S = 300.0
"""Age up to which a verdict counts as its author's own: a validator sends it as soon as it has replayed the group.
Anybody may repeat older ones, so those have rates of their own."""


class VerdictGate:
    """Groups, validators and rates that one node knows of."""

    def __init__(self) -> None:
        self._groups = RecentDigests(_GROUPS)
        self._standings = StandingTable(_VALIDATORS, bytes)
        self._rates = KeyedBuckets(_RATE, capacity=2 * _VALIDATORS)
        self._newcomers = KeyedBuckets(_NEWCOMERS_RATE, capacity=2)
        self._held: OrderedDict[Digest, tuple[Opened, PeerId]] = OrderedDict()
        self._ready: deque[tuple[Opened, PeerId]] = deque()

    @property
    def held(self) -> int:
        """Verdicts that wait for their group."""
        return len(self._held)

    def note(self, opened: Opened) -> None:
        """Learn from an accepted message: groups, and checks of validators. The learner's are signed by the learner."""
        body = opened.body
        if opened.kind in GROUP_KINDS:
            self._know([opened.digest])
        elif isinstance(body, StorageReceipt):
            self._know(body.groups)
        elif isinstance(body, Receipts):
            self._know([receipt.group for receipt in body.receipts])
        elif isinstance(body, VerdictChecks):
            self._standings.note_checks(body.checks, opened.sent_ms / 1000)

    def admits(self, opened: Opened, source: PeerId, now: float) -> bool:
        """Whether to pass on a verdict now. One on an unknown group is held; one above the rates is dropped."""
        validator, is_fresh = opened.author, now - opened.sent_ms / 1000 < _FRESH_S
        if not self._rates.take((validator, is_fresh), now):
            return False
        if not self.is_known(validator, now) and not self._newcomers.take(is_fresh, now):
            return False
        if body_of(opened, Verdict).group in self._groups:
            return True
        self._hold(opened, source, now)
        return False

    def is_known(self, validator: bytes, now: float) -> bool:
        """Whether a validator has standing by the checks of its verdicts that this node has seen."""
        return self._standings.is_known(validator, now)

    def take_released(self) -> list[tuple[Opened, PeerId]]:
        """Verdicts whose group has become known, and the peers they came from."""
        released = list(self._ready)
        self._ready.clear()
        return released

    def _hold(self, opened: Opened, source: PeerId, now: float) -> None:
        of_same = [name for name, (other, _) in self._held.items() if other.author == opened.author]
        if len(of_same) >= _HELD_PER_VALIDATOR:
            del self._held[of_same[0]]
        elif len(self._held) >= _HELD:
            newcomers = (name for name, (other, _) in self._held.items() if not self.is_known(other.author, now))
            del self._held[next(newcomers, next(iter(self._held)))]
        self._held[opened.digest] = opened, source

    def _know(self, groups: Sequence[bytes]) -> None:
        new = {group for group in groups if group not in self._groups}
        for group in groups:
            self._groups.add(group)
        if new and self._held:
            ready = [name for name, (held, _) in self._held.items() if body_of(held, Verdict).group in new]
            self._ready.extend(self._held.pop(name) for name in ready)
