"""Verify-before-forward gossip of signed envelopes.

An envelope is checked by the owner (signature, schema, run, author) before a byte of it is passed on, so junk dies at
the first honest peer. Those a message is meant for get it pushed at once by its author; everybody else who may want
it is soon offered its digest and asks. A peer without a link to a learner hands its groups to a few carriers instead.

Pure: the owner feeds it and drains `outbox`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from p2prl.errors import RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.digests import Digest, received_digest
from p2prl.protocol.envelope import Opened
from p2prl.protocol.identity import PeerId
from p2prl.protocol.kinds import Kind, Role
from p2prl.protocol.link_messages import Offer, Push, Want
from p2prl.protocol.wire_codec import Wire
from p2prl.swarm.gossip.announcements import Announcements
from p2prl.swarm.ports import Randomness
from p2prl.swarm.random_choice import draw, draw_one

AUDIENCE: dict[Kind, frozenset[Role]] = {
    Kind.RUN_MANIFEST: frozenset(),
    Kind.POLICY_MANIFEST: frozenset(Role),
    Kind.ROLLOUT_GROUP: frozenset({Role.LEARNER, Role.VALIDATOR}),
    Kind.STORAGE_RECEIPT: frozenset({Role.VOLUNTEER}),
    Kind.RECEIPTS: frozenset({Role.VOLUNTEER, Role.VALIDATOR, Role.BOARD}),
    Kind.VERDICT: frozenset({Role.LEARNER, Role.VALIDATOR, Role.BOARD}),
    Kind.LEDGER_HEAD: frozenset({Role.VOLUNTEER, Role.VALIDATOR, Role.BOARD, Role.SEEDER}),
    Kind.POLICY_HEAD: frozenset(Role),
    Kind.PEER_RECORD: frozenset(),
    Kind.INTRODUCTION: frozenset(),
}
"""Roles a kind of message is meant for. Peer records live in the directory, run manifests are asked for by name, and an
introduction is pushed to the one peer it is for."""

PUSHED: dict[Kind, frozenset[Role]] = {
    **AUDIENCE,
    Kind.ROLLOUT_GROUP: frozenset({Role.LEARNER}),
}
"""Roles to whom an author pushes without offering first. Validators take a sample: groups are only offered to them."""

_PUSHED_ON = frozenset({Kind.POLICY_MANIFEST, Kind.POLICY_HEAD})
"""Kinds that everybody wants at once: a forwarder pushes them too."""

CARRIED = frozenset({Kind.ROLLOUT_GROUP, Kind.VERDICT})
"""Kinds that must reach a learner, and so are handed to carriers while no learner is a neighbour."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GossipConfig:
    """Dials of the gossip; the defaults suit swarms from two peers to some thousands."""

    carriers: int = 3
    """Neighbours that carry a message towards learners while none is a neighbour."""
    store_bytes: int = 16 * 1024 * 1024
    """Envelopes kept to answer wants: several minutes of a busy swarm, and little memory."""
    seen: int = 100_000
    """Digests remembered so that nothing is forwarded twice."""
    offer_s: float = 1.0
    """An offer waits up to this long for company. What must reach a learner does not wait."""
    answer_bytes: int = 4 * 1024 * 1024
    """Envelopes pushed to one neighbour, for its wants, between two drains of the outbox. A want costs 33 bytes to
    send and may be answered with 256 KiB: without a bound one frame of them fills the memory. The asker asks again."""


class Gossip:
    """Who has been told what, and what is left to tell."""

    def __init__(self, role: Role, rng: Randomness, config: GossipConfig) -> None:
        """`role` is what this node itself is there for."""
        self._is_learner = role is Role.LEARNER
        self._rng = rng
        self._config = config
        self._roles: dict[PeerId, Role] = {}
        self._seen: OrderedDict[Digest, None] = OrderedDict()
        self._store: OrderedDict[Digest, tuple[Kind, bytes]] = OrderedDict()
        self._stored_bytes = 0
        self._pinned: dict[Digest, bytes] = {}
        self._wanted: dict[Digest, set[PeerId]] = {}
        self._answered: dict[PeerId, int] = {}
        self._offering = Announcements(rng, config.offer_s)
        self.outbox: list[tuple[PeerId, Wire]] = []

    def set_role(self, peer: PeerId, role: Role) -> None:
        """A neighbour said what it is there for."""
        self._roles[peer] = role

    def remove_neighbour(self, peer: PeerId) -> None:
        """The link is gone."""
        self._roles.pop(peer, None)
        self._offering.forget(peer)
        for askers in self._wanted.values():
            askers.discard(peer)

    def pin(self, raw: bytes, name: Digest) -> None:
        """Keep an envelope for good: the run manifest, the newest policy manifests."""
        self._pinned[name] = raw
        self._remember(name)

    def unpin(self, name: Digest) -> None:
        """Let go of a pinned envelope. It may be asked for again: the manifests of a way once passed by, say."""
        self._pinned.pop(name, None)
        self._seen.pop(name, None)

    def is_new(self, name: Digest) -> bool:
        """Whether an envelope of this name has not been accepted yet."""
        return name not in self._seen

    def ask(self, name: Digest, peers: Iterable[PeerId]) -> None:
        """Ask these neighbours for an envelope by name."""
        for peer in peers:
            self.outbox.append((peer, Want((name,))))

    def ask_all(self, name: Digest) -> None:
        """Ask every neighbour for an envelope by name."""
        self.ask(name, list(self._roles))

    def ask_few(self, names: Iterable[Digest]) -> None:
        """Ask the learner, and a few others, for envelopes by name: each may answer with all of them."""
        wanted = tuple(names)
        learners = [peer for peer, role in self._roles.items() if role is Role.LEARNER]
        others = [peer for peer, role in self._roles.items() if role is not Role.LEARNER]
        self.outbox.extend((peer, Want(wanted)) for peer in (*learners, *self._some(others)))

    def spread(self, opened: Opened, *, source: PeerId | None) -> None:
        """Pass on an envelope the owner has checked. `source` is None for the node's own.

        Calling it again for an own envelope tells everybody again: the spool does so until a storage receipt comes.
        """
        self._remember(opened.digest)
        self._keep(opened)
        audience = AUDIENCE[opened.kind]
        told = {source, *self._wanted.pop(opened.digest, ())} - {None}
        eager = PUSHED[opened.kind] if source is None or opened.kind in _PUSHED_ON else frozenset()
        for peer, role in self._roles.items():
            if peer in told or role not in audience:
                continue
            if role in eager:
                self.outbox.append((peer, Push(opened.raw)))
            elif opened.kind in CARRIED and role is Role.LEARNER:
                self.outbox.append((peer, Offer((opened.digest,))))
            else:
                self._offering.add(peer, opened.digest)
        if opened.kind in CARRIED and not self._is_learner and Role.LEARNER not in self._roles.values():
            others = [p for p, role in self._roles.items() if p not in told and role not in audience]
            for peer in self._some(others):
                self.outbox.append((peer, Push(opened.raw) if source is None else Offer((opened.digest,))))

    def spread_again(self, name: Digest, *, source: PeerId) -> None:
        """Offer on an envelope that was pushed here a second time: its author has heard of no learner that has it.

        Whoever carried it before may have had no learner in reach; the way may be open now. Costs offers only, and
        only for kinds that must reach a learner.
        """
        kind, _ = self._store.get(name, (None, b""))
        if kind not in CARRIED:
            return
        others = [p for p, role in self._roles.items() if p != source]
        learners = [p for p in others if self._roles[p] is Role.LEARNER]
        self.outbox.extend((peer, Offer((name,))) for peer in learners or self._some(others))

    def _some(self, peers: list[PeerId]) -> list[PeerId]:
        """A few of `peers`, at random."""
        return draw(peers, self._config.carriers, self._rng)

    def on_offer(self, message: Offer, source: PeerId) -> None:
        """Ask for what is new, unless somebody was asked already."""
        fresh = []
        for name in _names(message.digests):
            if name in self._seen:
                self._offering.is_known(source, name)
                continue
            askers = self._wanted.setdefault(name, set())
            if not askers:
                fresh.append(name)
            askers.add(source)
        if fresh:
            self.outbox.append((source, Want(tuple(fresh))))
        while len(self._wanted) > self._config.seen:
            self._wanted.pop(next(iter(self._wanted)))

    def on_want(self, message: Want, source: PeerId) -> None:
        """Push what is still here, once and within `answer_bytes`; say nothing about the rest."""
        for name in _names(message.digests):
            self._offering.is_known(source, name)
            raw = self._pinned.get(name) or self._store.get(name, (None, b""))[1]
            answered = self._answered.get(source, 0) + len(raw)
            if raw and answered <= self._config.answer_bytes:
                self._answered[source] = answered
                self.outbox.append((source, Push(raw)))

    def flush(self, now: float) -> None:
        """Put the offers that are due into `outbox`; to be called before each drain."""
        self.outbox.extend(self._offering.take_due(now))

    def next_deadline(self) -> float:
        """When `flush` has something to do."""
        return self._offering.next_deadline()

    def drained(self) -> None:
        """The owner has taken everything out of `outbox`: neighbours may be answered again."""
        self._answered.clear()

    def retry_wants(self) -> None:
        """Ask the next neighbour that offered an envelope the last one never pushed."""
        again: dict[PeerId, list[Digest]] = {}
        for name, askers in list(self._wanted.items()):
            if not askers:
                del self._wanted[name]
                continue
            peer = draw_one(sorted(askers), self._rng)
            askers.discard(peer)
            again.setdefault(peer, []).append(name)
        step = limits.MAX_DIGESTS_PER_MESSAGE
        for peer, names in again.items():
            self.outbox.extend((peer, Want(tuple(names[i : i + step]))) for i in range(0, len(names), step))

    def _remember(self, name: Digest) -> None:
        self._seen[name] = None
        self._seen.move_to_end(name)
        if len(self._seen) > self._config.seen:
            self._seen.popitem(last=False)

    def _keep(self, opened: Opened) -> None:
        if opened.digest in self._store or opened.digest in self._pinned:
            return
        self._store[opened.digest] = opened.kind, opened.raw
        self._stored_bytes += len(opened.raw)
        while self._stored_bytes > self._config.store_bytes:
            _, (_, oldest) = self._store.popitem(last=False)
            self._stored_bytes -= len(oldest)


def _names(digests: tuple[bytes, ...]) -> list[Digest]:
    if len(digests) > limits.MAX_DIGESTS_PER_MESSAGE:
        raise RemoteProtocolError(f"{len(digests)} digests in one message")
    return [received_digest(raw) for raw in dict.fromkeys(digests)]
