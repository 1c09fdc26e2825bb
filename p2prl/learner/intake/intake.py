"""Intake of groups and verdicts: store and acknowledge on arrival; checks follow when there is room.

Everything is written to the journal before it is sent, in one transaction with the state change it reports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from p2prl.clock import Clock
from p2prl.learner.intake.decoded_groups import DecodedGroups
from p2prl.learner.intake.receipt_signing import sign_storage_receipts
from p2prl.learner.intake.replay_backlog import ReplayBacklog, WaitingGroup
from p2prl.learner.intake.staleness_buffer import RolloutBuffer
from p2prl.learner.intake.verified_group import read_verified
from p2prl.learner.journal.groups import GroupState, StoredGroup
from p2prl.learner.signing_sender import SigningSender
from p2prl.learner.storage import LearnerStorage
from p2prl.protocol import limits
from p2prl.protocol.envelope import Opened, body_of, open_envelope
from p2prl.protocol.kinds import Kind
from p2prl.protocol.ledger_messages import Verdict
from p2prl.protocol.rollout_group import RolloutGroup

TURNED_AWAY = ("unknown_policy", "too_many")
"""Reasons not to store a group: it names no policy of this learner; its peer has too many groups waiting for a
check."""

_ALL = 1_000_000
"""No limit in practice: the buffer holds some dozens of groups."""


def turned_away_figures(counts: Mapping[str, int]) -> dict[str, float]:
    """`Intake.turned_away` as keys of the metrics log."""
    return {f"turned_away/{reason}": count for reason, count in counts.items()}


class Intake:
    """Takes groups and verdicts into the journal, the buffer and the ledger."""

    def __init__(
        self,
        *,
        storage: LearnerStorage,
        decoded: DecodedGroups,
        buffer: RolloutBuffer,
        backlog: ReplayBacklog,
        sender: SigningSender,
        clock: Clock,
    ) -> None:
        self._storage = storage
        self._journal = storage.journal
        self._decoded = decoded
        self._buffer = buffer
        self._backlog = backlog
        self._sender = sender
        self._clock = clock
        self._turned_away: Counter[str] = Counter(dict.fromkeys(TURNED_AWAY, 0))

    @property
    def turned_away(self) -> dict[str, int]:
        """Groups that were not stored since the start, by reason."""
        return dict(self._turned_away)

    def receive(self, envelopes: Sequence[bytes]) -> bool:
        """Store and acknowledge the groups among these, and take the verdicts. True when the ledger has grown."""
        opened = [open_envelope(raw, now=None) for raw in envelopes]
        self._receive_groups([each for each in opened if each.kind is Kind.ROLLOUT_GROUP])
        # After the groups: a verdict may have come with the group it is about.
        return self._receive_verdicts([each for each in opened if each.kind is Kind.VERDICT])

    def refill(self) -> None:
        """Put the stored groups of the journal back into the backlog, and the verified ones into the buffer, after a
        start."""
        for digest, peer, version in self._journal.groups.waiting():
            self._backlog.add(WaitingGroup(digest, peer, version))
        for stored in self._journal.groups.in_state(GroupState.VERIFIED, limit=_ALL):
            group = read_verified(stored, self._storage.published)
            if group is not None:
                self._buffer.add(group)
                continue
            with self._journal.transaction():
                self._journal.groups.mark_unused(stored.digest)

    def _receive_groups(self, arrived: Sequence[Opened]) -> None:
        if not arrived:
            return
        now = self._clock.now()
        with self._journal.transaction():
            stored = [opened.digest for opened in arrived if self._store(opened, now)]
        for envelope in sign_storage_receipts(self._sender, stored):
            self._sender.send(envelope)

    def _store(self, opened: Opened, now: float) -> bool:
        """Store a group unless it is already stored; False when it is turned away."""
        if self._journal.groups.knows(opened.digest):
            return True
        group = body_of(opened, RolloutGroup)
        if self._storage.published.get(group.version, group.policy) is None and not (
            self._journal.policies.was_published(group.version, group.policy)
        ):
            self._turned_away["unknown_policy"] += 1
            return False
        if self._journal.groups.unchecked_count(opened.author) >= limits.MAX_UNCHECKED_GROUPS_PER_PEER:
            self._turned_away["too_many"] += 1
            return False
        stored = StoredGroup(opened.digest, opened.author, group.version, group.slot, opened.raw, b"", b"")
        self._decoded.keep(opened.digest, group, envelope_bytes=len(opened.raw))
        self._backlog.add(WaitingGroup(stored.digest, stored.peer, stored.version))
        return self._journal.groups.store(stored, now)

    def _receive_verdicts(self, verdicts: Sequence[Opened]) -> bool:
        """Put verdicts on stored groups into the ledger."""
        if not verdicts:
            return False
        ledger = self._journal.ledger
        height = ledger.height
        with self._journal.transaction():
            for opened in verdicts:
                ledger.add_verdict(body_of(opened, Verdict), opened.author, opened.raw)
        return ledger.height > height
