"""Intake of groups and verdicts: store and acknowledge on arrival; checks follow when there is room.

Everything is written to the journal before it is sent, in one transaction with the state change it reports. What costs
least is asked first: an envelope that is stored already is known by its digest, before its signature; then whether its
author is excluded, its policy known, and whether there is room and time for one more (`arrival_limits`).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence

from p2prl.clock import Clock
from p2prl.errors import RemoteProtocolError
from p2prl.learner.intake.admission import DecodedGroups
from p2prl.learner.intake.arrival_limits import ArrivalLimits
from p2prl.learner.intake.owners import Owners
from p2prl.learner.intake.peer_standings import PeerStandings
from p2prl.learner.intake.replay_backlog import Held, ReplayBacklog, WaitingGroup
from p2prl.learner.intake.rollout_buffer import RolloutBuffer
from p2prl.learner.intake.settlement import sign_storage_receipts
from p2prl.learner.intake.slot_prices import SlotPrices
from p2prl.learner.intake.verdict_checks import VerdictIntake
from p2prl.learner.intake.verified_group import read_verified
from p2prl.learner.journal.groups import GroupState, StoredGroup
from p2prl.learner.signing_sender import SigningSender
from p2prl.learner.storage import LearnerStorage
from p2prl.protocol import limits
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened, body_of, envelope_digest, open_envelope
from p2prl.protocol.kinds import Kind
from p2prl.protocol.ledger_chain import OWNERS_STATEMENTS
from p2prl.protocol.rollout_group import GroupHeader, RolloutGroup
from p2prl.protocol.signed_group import SignedGroup, assemble_group
from p2prl.protocol.standing import Rank
from p2prl.swarm import signals

TURNED_AWAY = ("unknown_policy", "too_many", "too_fast", "slot_gaps", "excluded")
"""Reasons not to store a group: it names no policy of this learner; too many groups wait for a check, of its peer, of
all newcomers or of all; its key, or all newcomers, deliver faster than their rate; too many slots of its key below it
have not arrived; its key is excluded."""

_ANSWERED_AGAIN_S = 2.0
"""A stored group that arrives again is acknowledged again, but not more often than this: its author offers it again
after five seconds, and each acknowledgement is signed and goes through the whole swarm."""

_ANSWERS_REMEMBERED = 4_096
"""Such groups remembered, over all keys."""

_COUNTED_EVERY_S = 1.0
"""Time between two counts of what waits, which looks at every peer; what is stored in between is added."""

_MALFORMED_REMEMBERED = 1_024
"""Malformed bodies that are not fetched again. Each has cost its author the upload of a large group."""

_ALL = 1_000_000
"""No limit in practice: the buffer holds some dozens of groups."""


def turned_away_figures(counts: Mapping[str, int]) -> dict[str, float]:
    """`Intake.turned_away` as keys of the metrics log."""
    return {f"turned_away/{reason}": count for reason, count in counts.items()}


class Intake:
    """Takes groups and verdicts into the journal, the buffer and the ledger.

    It holds every bound on what arrives, because a group is stored only if none of them turns it away.
    """

    def __init__(
        self,
        storage: LearnerStorage,
        decoded: DecodedGroups,
        buffer: RolloutBuffer,
        backlog: ReplayBacklog,
        prices: SlotPrices,
        owners: Owners,
        standings: PeerStandings,
        sender: SigningSender,
        clock: Clock,
        verdicts: VerdictIntake,
    ) -> None:
        self._storage = storage
        self._verdicts = verdicts
        self._journal = storage.journal
        self._decoded = decoded
        self._buffer = buffer
        self._backlog = backlog
        self._prices = prices
        self._owners = owners
        self._standings = standings
        self._limits = ArrivalLimits()
        self._waiting: dict[Rank, tuple[int, Held]] = {}
        """`ReplayBacklog.held_by_rank`, with what was stored since it was counted."""
        self._counted_at = float("-inf")
        self._answered: OrderedDict[Digest, float] = OrderedDict()
        """When stored groups that arrived again were acknowledged last."""
        self._sender = sender
        self._clock = clock
        self._turned_away: Counter[str] = Counter(dict.fromkeys(TURNED_AWAY, 0))
        self._malformed: OrderedDict[Digest, None] = OrderedDict()

    @property
    def turned_away(self) -> dict[str, int]:
        """Groups that were not stored since the start, by reason."""
        return dict(self._turned_away)

    @property
    def figures(self) -> dict[str, float]:
        """Groups turned away and verdicts checked, as keys of the metrics log."""
        return turned_away_figures(self._turned_away) | self._verdicts.figures

    def receive(self, envelopes: Sequence[bytes]) -> bool:
        """Store and acknowledge the groups among these, and take the verdicts and the owners' statements. True when the
        ledger has grown."""
        opened = [open_envelope(raw, now=None) for raw in self._without_stored(envelopes)]
        self._receive_groups([each for each in opened if each.kind is Kind.ROLLOUT_GROUP])
        self._receive_headers([each for each in opened if each.kind is Kind.GROUP_HEADER])
        # After the groups: a verdict may have come with the group it is about.
        has_verdicts = self._receive_verdicts([each for each in opened if each.kind is Kind.VERDICT])
        return self._owners.receive([each for each in opened if each.kind in OWNERS_STATEMENTS]) or has_verdicts

    def receive_body(self, header: bytes, body: bytes) -> None:
        """Store and acknowledge a large group whose body was fetched, then let the network drop its copy."""
        opened = open_envelope(header, now=None)
        try:
            group = assemble_group(opened, body)
        except RemoteProtocolError:
            self._malformed[opened.digest] = None
            if len(self._malformed) > _MALFORMED_REMEMBERED:
                self._malformed.popitem(last=False)
        else:
            with self._journal.transaction():
                self._keep(group, body, self._clock.now())
            self._acknowledge([opened.digest])
        self._sender.network.send(signals.ReleaseGroup(opened.digest))

    def refill(self) -> None:
        """Put the stored groups of the journal back into the backlog, and the verified ones into the buffer, after a
        start."""
        for waiting in self._journal.groups.waiting():
            self._backlog.add(WaitingGroup(*waiting))
        for stored in self._journal.groups.in_state(GroupState.VERIFIED, limit=_ALL):
            group = read_verified(stored, self._storage.published)
            if group is not None and not self._buffer.leave_out(group):
                self._buffer.add(group)
                continue
            with self._journal.transaction():
                self._journal.groups.mark_unused(stored.digest)

    def _without_stored(self, envelopes: Sequence[bytes]) -> list[bytes]:
        """The envelopes without those of groups that are stored, which are acknowledged again: the very bytes were
        verified before."""
        new, stored, now = [], [], self._clock.now()
        for raw in envelopes:
            digest = envelope_digest(raw)
            if not self._journal.groups.knows(digest):
                new.append(raw)
            elif now - self._answered.get(digest, float("-inf")) >= _ANSWERED_AGAIN_S:
                stored.append(digest)
                self._answered[digest] = now
                self._answered.move_to_end(digest)
                if len(self._answered) > _ANSWERS_REMEMBERED:
                    self._answered.popitem(last=False)
        self._acknowledge(stored)
        return new

    def _receive_groups(self, arrived: Sequence[Opened]) -> None:
        if not arrived:
            return
        now = self._clock.now()
        with self._journal.transaction():
            stored = [opened.digest for opened in arrived if self._store(opened, now)]
        self._acknowledge(stored)

    def _store(self, opened: Opened, now: float) -> bool:
        """Store a group unless it is already stored; False when it is turned away."""
        if self._journal.groups.knows(opened.digest):  # it came twice at once
            return True
        group = body_of(opened, RolloutGroup)
        if not self._is_welcome(opened, group, now):
            return False
        self._keep(SignedGroup(opened, group, len(opened.raw)), b"", now)
        return True

    def _keep(self, group: SignedGroup, body: bytes, now: float) -> None:
        """Store a group and queue it for its check, unless it is stored."""
        if self._journal.groups.knows(group.digest):
            return
        version = group.group.version
        stale = self._storage.published.get(version, group.group.policy) is None
        reason = self._prices.arrived(group.author, group.group.slot, version, stale=stale, now=now)
        if self._journal.groups.store(_row_of(group, body, reason), now):
            self._decoded.keep(group)
            self._backlog.add(WaitingGroup(group.digest, group.author, version, group.size_bytes))

    def _receive_headers(self, arrived: Sequence[Opened]) -> None:
        """Fetch the bodies of large groups that would be stored. What is being fetched counts against a budget of the
        network process, so the limits here may be exceeded by no more than that."""
        now = self._clock.now()
        for opened in arrived:
            if opened.digest in self._malformed:
                continue
            header = body_of(opened, GroupHeader)
            if self._is_welcome(opened, header, now, body_bytes=header.body.size_bytes):
                self._sender.network.send(signals.FetchGroup(opened.digest))

    def _is_welcome(
        self, opened: Opened, group: RolloutGroup | GroupHeader, now: float, *, body_bytes: int = 0
    ) -> bool:
        """Whether a new group is stored; if it is not, the reason is counted."""
        reason = self._why_not(opened, group, now, body_bytes=body_bytes)
        if reason:
            self._turned_away[reason] += 1
        return not reason

    def _why_not(self, opened: Opened, group: RolloutGroup | GroupHeader, now: float, *, body_bytes: int) -> str:
        """Why a new group is turned away; empty if it is stored."""
        groups, peer, size_bytes = self._journal.groups, opened.author, len(opened.raw) + body_bytes
        if self._standings.is_excluded(peer) and not self._standings.tells(peer):
            return "excluded"
        if self._storage.published.get(group.version, group.policy) is None and not (
            self._journal.policies.was_published(group.version, group.policy)
        ):
            return "unknown_policy"
        if not 0.0 <= now - self._counted_at < _COUNTED_EVERY_S:
            self._waiting, self._counted_at = self._backlog.held_by_rank(), now
        rank, mine = self._standings.rank(peer), self._backlog.held(peer)
        too_large = mine.size_bytes + size_bytes > limits.MAX_UNCHECKED_BYTES_PER_PEER or (
            body_bytes and groups.unchecked_body_bytes(peer) + body_bytes > limits.MAX_UNCHECKED_BYTES_PER_PEER
        )
        if (
            too_large
            or not self._limits.has_room(rank, mine, size_bytes, self._waiting)
            or groups.unchecked_exceed(limits.MAX_UNCHECKED_BYTES - size_bytes)
        ):
            return "too_many"
        if not self._prices.has_room(peer, group.slot, now=now):
            return "slot_gaps"
        if not self._limits.take(self._standings.identity(peer), rank, now):
            return "too_fast"
        peers, held = self._waiting[rank]
        self._waiting[rank] = (peers + (not mine.groups), Held(held.groups + 1, held.size_bytes + size_bytes))
        return ""

    def _acknowledge(self, stored: Sequence[Digest]) -> None:
        """Publish storage receipts for groups on disk."""
        for envelope in sign_storage_receipts(self._sender, stored):
            self._sender.send(envelope)

    def _receive_verdicts(self, verdicts: Sequence[Opened]) -> bool:
        """Check verdicts on stored groups, put those with a proof into the ledger, and publish their checks."""
        if not verdicts:
            return False
        ledger = self._journal.ledger
        height = ledger.height
        with self._journal.transaction():
            checks = self._verdicts.receive(verdicts)
            self._owners.enter(self._verdicts.take_confirmed())
        for envelope in checks:
            self._sender.send(envelope)
        return ledger.height > height


def _row_of(group: SignedGroup, body: bytes, reason: str) -> StoredGroup:
    return StoredGroup(
        group.digest, group.author, group.group.version, group.group.slot, group.envelope.raw, b"", b"", body, reason
    )
