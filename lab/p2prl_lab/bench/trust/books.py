"""A learner's books without any model: slot accounts, standings, turns of the replays, buffer and caps of a batch.

All of them are the product's own, on a journal on disk. Every group that is offered is valid: what is asked is how much
of the training its author gets, and which groups are voided.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from p2prl.learner.intake.admission import Outcome
from p2prl.learner.intake.arrival_limits import ArrivalLimits
from p2prl.learner.intake.peer_standings import PeerStandings
from p2prl.learner.intake.replay_backlog import BacklogConfig, ReplayBacklog, WaitingGroup
from p2prl.learner.intake.rollout_buffer import RolloutBuffer
from p2prl.learner.intake.slot_prices import SlotPrices
from p2prl.learner.intake.verified_group import VerifiedGroup
from p2prl.learner.journal.groups import StoredGroup
from p2prl.learner.journal.journal import Journal
from p2prl.protocol.digests import Digest
from p2prl.protocol.digests import digest as digest_of
from p2prl.protocol.ledger_messages import Receipt, ReceiptState
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.rollout_group import EngineClass, RolloutGroup
from p2prl.protocol.standing import Rank
from p2prl.sim.virtual_time import START
from p2prl_lab.sim.trusting_learner import EqualStandings, FreeSlots

GROUPS_PER_UPDATE = 16
UPDATE_S = 20.0
STALENESS_BOUND = 64
"""In updates; each publishes a version."""

_REPLAY_S = 0.3
_SURPLUS_SHARE = 0.1
_SIZE_BYTES = 2_000
_ALL = 1 << 20
_GROUP = RolloutGroup(0, bytes(32), 0, "", b"", (), EngineClass("", "", "", ""), 0.0)
"""Groups differ by their offers alone."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A group that is offered to a learner."""

    peer: bytes
    slot: int
    version: int
    is_chosen: bool = False
    """Whether its author had more than one to choose from."""

    @property
    def digest(self) -> Digest:
        """Name of the group."""
        return digest_of("p2prl/bench/offer", self.peer, self.slot.to_bytes(8, "little"))


@dataclass(slots=True)
class _Clock:
    """Virtual time."""

    time: float = START

    def now(self) -> float:
        return self.time


class Books:
    """What a learner knows and does about groups whose tokens are right.

    It has many attributes because it holds every part of a learner's intake, and what came of the groups.
    """

    def __init__(self, folder: Path, *, checks: bool = True) -> None:
        """Keeps a journal in `folder`. With `checks` off there are no slot accounts, no standing and no caps."""
        self.owners: dict[bytes, bytes] = {}
        """Owner of each key that works for one."""
        self.step = 0
        self.voided: list[Offer] = []
        """Valid groups that were not credited. Those that came too late for training are in neither list."""
        self.credited: list[Offer] = []
        self.trained: list[Offer] = []
        self._clock = _Clock()
        self._journal = Journal(folder / "journal.db")

        def owner_of(peer: bytes) -> bytes:
            return self.owners.get(peer, peer)

        self._prices = (SlotPrices if checks else FreeSlots)(self._journal, secret=bytes(32), identity_of=owner_of)
        self.standings = (PeerStandings if checks else EqualStandings)(
            self._clock, identity_of=owner_of, charged=self._prices.charged
        )
        config = BacklogConfig(
            batch_groups=GROUPS_PER_UPDATE,
            surplus_share=_SURPLUS_SHARE,
            newest_first=True,
            in_time=STALENESS_BOUND * GROUPS_PER_UPDATE // 2,
        )
        self._backlog = ReplayBacklog(config, rank=self.standings.rank, author=self.standings.identity)
        self._buffer = RolloutBuffer(
            staleness_bound=STALENESS_BOUND,
            ready_target=3 * GROUPS_PER_UPDATE // 2,
            contributor=self.standings.contributor,
        )
        self._limits = ArrivalLimits()
        self._waiting = self._backlog.held_by_rank()
        self._stored: dict[Digest, tuple[Offer, str]] = {}

    @property
    def now(self) -> float:
        """Unix time."""
        return self._clock.time

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self._clock.time += seconds

    def arrivals(self) -> AbstractContextManager[object]:
        """Groups are offered within this, many at once: each end of it waits for the disk."""
        return self._journal.transaction()

    def offer(self, offer: Offer) -> bool:
        """Whether a group is stored; one that is turned away may be offered again."""
        peer, name = offer.peer, offer.digest
        if name in self._stored:
            return True
        rank = self.standings.rank(peer)
        if (
            not self._limits.has_room(rank, self._backlog.held(peer), _SIZE_BYTES, self._waiting)
            or not self._prices.has_room(peer, offer.slot, now=self.now)
            or not self._limits.take(self.standings.identity(peer), rank, self.now)
        ):
            return False
        stale = self._is_stale(offer.version)
        reason = self._prices.arrived(peer, offer.slot, offer.version, stale=stale, now=self.now)
        self._stored[name] = offer, reason
        self._backlog.add(WaitingGroup(name, peer, offer.version, _SIZE_BYTES))
        return True

    def work(self) -> None:
        """Settle what is due, and make an update if there are groups for it."""
        self._settle(self._backlog.useless(lambda group: not self._is_stale(group.version), _ALL))
        while batch := self._backlog.next_batch(self._buffer.wanted, wanted_of_known=self._buffer.wanted_of_known):
            newcomers = sum(self.standings.rank(group.peer) is not Rank.KNOWN for group in batch)
            self._backlog.replay_ended(_REPLAY_S * len(batch), newcomers_s=_REPLAY_S * newcomers)
            self._settle(batch)
        self._buffer.drop_stale(self.step)
        if len(self._buffer) >= GROUPS_PER_UPDATE:
            batch_of_update = self._buffer.take(GROUPS_PER_UPDATE, step=self.step)
            self.trained += [self._stored[group.digest][0] for group in batch_of_update]
            self.step += 1
        self._backlog.update_ended(UPDATE_S)
        self._waiting = self._backlog.held_by_rank()

    def _is_stale(self, version: int) -> bool:
        return self.step - version > STALENESS_BOUND

    def _settle(self, groups: Sequence[WaitingGroup]) -> None:
        outcomes, accounts = self._prices.price([self._outcome(group) for group in groups])
        with self._journal.transaction():
            self._prices.write(accounts)
        self.standings.note([_receipt(outcome) for outcome in outcomes], self.now)
        surplus = self._backlog.is_surplus
        self._backlog.settled(group.digest for group in groups)
        for outcome in outcomes:
            offer, _ = self._stored[outcome.stored.digest]
            if outcome.state is ReceiptState.REJECTED:
                self.voided.append(offer)
            elif outcome.state is ReceiptState.VERIFIED:
                self.credited.append(offer)
                group = VerifiedGroup(outcome.stored.digest, offer.peer, outcome.group, offer.version, b"", b"")
                if surplus:
                    self._buffer.add_surplus(group)
                else:
                    self._buffer.add(group)

    def _outcome(self, waiting: WaitingGroup) -> Outcome:
        offer, reason = self._stored[waiting.digest]
        stored = StoredGroup(waiting.digest, offer.peer, offer.version, offer.slot, b"", b"", b"", reason=reason)
        if self._is_stale(offer.version):
            return Outcome(stored, _GROUP, ReceiptState.EXPIRED, RejectionReason.TOO_STALE)
        if reason:
            return Outcome(stored, _GROUP, ReceiptState.REJECTED, reason)
        return Outcome(stored, _GROUP, ReceiptState.VERIFIED, "")


def _receipt(outcome: Outcome) -> Receipt:
    stored = outcome.stored
    return Receipt(stored.digest, stored.peer, stored.version, stored.slot, outcome.state, outcome.reason, 0, 0, 0.0)
