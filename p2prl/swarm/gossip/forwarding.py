"""Verify-before-forward gossip of signed envelopes: which neighbors get one, whole or offered, and in answer to what.

The owner checks an envelope (signature, schema, run, author) before any byte of it is passed on, so junk stops at the
first honest peer. An author pushes to the roles a message is meant for; other interested peers are soon offered its
digest and ask for it. A peer without a link to a learner hands its groups to a few carriers instead.

Pure: the owner passes messages in and drains `outbox`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from p2prl.errors import RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.digests import Digest, received_digest
from p2prl.protocol.envelope import Opened
from p2prl.protocol.identity import PeerId
from p2prl.protocol.kinds import Kind, Role
from p2prl.protocol.ledger_chain import OWNERS_STATEMENTS
from p2prl.protocol.ledger_messages import StorageReceipt
from p2prl.protocol.link_messages import Offer, Push, Want
from p2prl.protocol.signed_group import GROUP_KINDS
from p2prl.protocol.wire_codec import Wire
from p2prl.swarm.gossip.deduplication import RecentDigests
from p2prl.swarm.gossip.envelope_store import EnvelopeStore, ReceiptCache
from p2prl.swarm.gossip.offers import Announcements, FreeCopies, Offers
from p2prl.swarm.ports import Randomness
from p2prl.swarm.random_choice import draw

AUDIENCE: dict[Kind, frozenset[Role]] = {
    Kind.RUN_MANIFEST: frozenset(),
    Kind.POLICY_MANIFEST: frozenset(Role),
    Kind.ROLLOUT_GROUP: frozenset({Role.LEARNER, Role.VALIDATOR}),
    Kind.STORAGE_RECEIPT: frozenset({Role.VOLUNTEER, Role.SEEDER}),
    Kind.RECEIPTS: frozenset({Role.VOLUNTEER, Role.VALIDATOR, Role.BOARD, Role.SEEDER}),
    Kind.VERDICT: frozenset({Role.LEARNER, Role.VALIDATOR, Role.BOARD}),
    Kind.VERDICT_CHECKS: frozenset({Role.VALIDATOR, Role.BOARD}),
    Kind.LEDGER_HEAD: frozenset(Role),
    Kind.COUNTERSIGNATURE: frozenset(Role),
    Kind.POLICY_HEAD: frozenset(Role),
    Kind.PEER_RECORD: frozenset(),
    Kind.INTRODUCTION: frozenset(),
    Kind.GROUP_HEADER: frozenset({Role.LEARNER, Role.VALIDATOR}),
    Kind.DELEGATION: frozenset({Role.LEARNER}),
    Kind.REVOCATION: frozenset({Role.LEARNER}),
    Kind.MEMBERSHIP: frozenset({Role.LEARNER}),
    Kind.STANDBY: frozenset({Role.VOLUNTEER, Role.SEEDER}),
}
"""Roles a message kind is meant for. Peer records live in the directory, run manifests are asked for by digest, and an
introduction is pushed to the one peer it names. Owners' statements reach everybody else in the ledger. A learner gets
heads of its own run that another machine has signed. Seeders pass receipts and standbys on: some homes reach nobody
but a seeder, which carries their groups to the learner."""

PUSHED_BY_AUTHOR: dict[Kind, frozenset[Role]] = {
    **AUDIENCE,
    Kind.ROLLOUT_GROUP: frozenset({Role.LEARNER}),
    Kind.GROUP_HEADER: frozenset({Role.LEARNER}),
}
"""Roles to which an author pushes without offering first. Validators take a sample: groups are only offered to them."""

PUSHED_BY_FORWARDERS = frozenset({Kind.POLICY_MANIFEST, Kind.POLICY_HEAD})
"""Kinds that every peer wants at once: forwarders push them too."""

BOUND_FOR_LEARNER = frozenset({Kind.ROLLOUT_GROUP, Kind.GROUP_HEADER, Kind.VERDICT, *OWNERS_STATEMENTS})
"""Kinds that must reach a learner: a node without a link to one hands them to a few carriers."""

OFFER_S = 1.0
"""Longest an offer waits to be batched with others. Messages bound for the learner do not wait."""


_PUSH_OVERHEAD_BYTES = 16
"""Of a frame, a message and an array around an envelope, at most."""


class MayAnswer(Protocol):
    """Counts an answer to one peer; False when the budget has no room for it."""

    def __call__(self, size_bytes: int, *, offered: bool = False) -> bool: ...


def always(size_bytes: int, *, offered: bool = False) -> bool:  # noqa: ARG001 - a budget without bounds
    """Answer everything."""
    return True


@dataclass(frozen=True, kw_only=True, slots=True)
class GossipConfig:
    """Gossip settings; the defaults suit swarms of two to several thousand peers."""

    carriers: int = 3
    """Peers that receive a message bound for the learner while no learner is linked."""
    store_bytes: int = 12 * 1024 * 1024
    """Memory of the envelopes kept to answer wants: minutes of a busy swarm."""
    seen: int = 65_536
    """Digests remembered, half of them at least, so that no envelope is forwarded twice: more than a neighbor keeps of
    the smallest envelopes, so nothing that it can still offer is new. 8 MB."""
    offers: int = 262_144
    """Offers remembered over all envelopes and peers: 40 MB at most. Many links may offer the same envelopes."""
    due: int = 32_768
    """Offers to peers that have not asked yet, and envelopes that peers have got without an offer: 8 MB."""
    answer_bytes: int = 4 * 1024 * 1024
    """Bytes of envelopes pushed to one peer, for its wants, between two drains of the outbox. A want costs 33 bytes to
    send and may be answered with 256 KiB: without a bound one frame of wants fills the memory. The asker asks again."""


class Gossip:
    """Forwards envelopes and answers offers and wants.

    More than twelve attributes, because every table here is about the same envelopes and peers.
    """

    def __init__(self, role: Role, rng: Randomness, config: GossipConfig) -> None:
        """`role` is this node's own role."""
        self._is_learner = role is Role.LEARNER
        self._rng = rng
        self._config = config
        self._roles: dict[PeerId, Role] = {}
        self._seen = RecentDigests(config.seen)
        self._store = EnvelopeStore(config.store_bytes)
        self._offers = Offers(most_names=config.seen, most_offers=config.offers)
        self._answered_bytes: dict[PeerId, int] = {}
        self._receipts = ReceiptCache()
        self._sent_receipts: set[tuple[PeerId, bytes]] = set()
        """Cached receipts sent to a peer since the last drain: one names many of its groups."""
        self._announcements = Announcements(rng, OFFER_S)
        self.free = FreeCopies(config.due)
        self.outbox: list[tuple[PeerId, Wire]] = []

    def set_role(self, peer: PeerId, role: Role) -> None:
        """Set the role of a linked peer."""
        self._roles[peer] = role

    def remove_peer(self, peer: PeerId) -> None:
        """Forget a peer whose link is gone."""
        self._roles.pop(peer, None)
        self._announcements.remove_peer(peer)
        self._offers.remove_peer(peer)
        self.free.remove_peer(peer)

    def pin(self, raw: bytes, name: Digest) -> None:
        """Keep an envelope until it is unpinned: the run manifest, the newest policy manifests."""
        self._store.pin(name, raw)
        self._seen.add(name)

    def unpin(self, name: Digest) -> None:
        """Release a pinned envelope. It may be asked for again, say as the manifest of a route rejected before."""
        self._store.unpin(name)
        self._seen.forget(name)

    def is_new(self, name: Digest) -> bool:
        """Whether an envelope of this digest has not been accepted yet."""
        return name not in self._seen

    def set_aside(self, name: Digest) -> None:
        """Do not ask for an envelope again that was accepted and is not passed on, or not yet."""
        self._seen.add(name)
        self._offers.take(name)

    def kind_of_recent(self, name: Digest) -> Kind | None:
        """Kind of an envelope that was accepted lately and is still kept."""
        return self._store.kind_of_recent(name)

    def ask(self, name: Digest, peers: Iterable[PeerId]) -> None:
        """Ask these peers for an envelope by digest."""
        for peer in peers:
            self.outbox.append((peer, Want((name,))))

    def ask_all(self, name: Digest) -> None:
        """Ask every peer for an envelope by digest."""
        self.ask(name, list(self._roles))

    def ask_few(self, names: Iterable[Digest]) -> None:
        """Ask the learner and a few other peers for envelopes by digest: each may answer with all of them."""
        wanted = tuple(names)
        learners = [peer for peer, role in self._roles.items() if role is Role.LEARNER]
        others = [peer for peer, role in self._roles.items() if role is not Role.LEARNER]
        self.outbox.extend((peer, Want(wanted)) for peer in (*learners, *self._draw_carriers(others)))

    def spread(self, opened: Opened, *, source: PeerId | None) -> None:
        """Forward an envelope the owner has checked. `source` is None for the node's own.

        Spreading an own envelope again sends it to all peers again: the spool does so until a storage receipt arrives.
        """
        self._seen.add(opened.digest)
        self._store.add(opened)
        audience = AUDIENCE[opened.kind]
        already_have = {source, *self._offers.take(opened.digest)} - {None}
        push = source is None or opened.kind in PUSHED_BY_FORWARDERS
        pushed_to = PUSHED_BY_AUTHOR[opened.kind] if push else frozenset()
        for peer, role in self._roles.items():
            if peer in already_have or role not in audience:
                continue
            if role in pushed_to:
                self.outbox.append((peer, Push(opened.raw)))
            elif opened.kind in BOUND_FOR_LEARNER and role is Role.LEARNER:
                self._offer(peer, opened.digest)
            else:
                self._announcements.add(peer, opened.digest)
        if opened.kind in BOUND_FOR_LEARNER and not self._is_learner and Role.LEARNER not in self._roles.values():
            others = [p for p, role in self._roles.items() if p not in already_have and role not in audience]
            for peer in self._draw_carriers(others):
                if source is None:
                    self.outbox.append((peer, Push(opened.raw)))
                else:
                    self._offer(peer, opened.digest)

    def spread_again(self, name: Digest, *, source: PeerId) -> None:
        """Offer an envelope again that was pushed here a second time: its author still has no receipt for it.

        Earlier carriers may have had no route to a learner that exists now. Costs offers only, and only for kinds
        bound for the learner.
        """
        if self.kind_of_recent(name) not in BOUND_FOR_LEARNER:
            return
        others = [p for p, role in self._roles.items() if p != source]
        learners = [p for p in others if self._roles[p] is Role.LEARNER]
        for peer in learners or self._draw_carriers(others):
            self._offer(peer, name)

    def note_receipt(self, opened: Opened) -> None:
        """Remember a storage receipt of the learner."""
        if isinstance(opened.body, StorageReceipt):
            self._receipts.note(opened.body.groups, opened.raw)

    def answer_repeated(self, name: Digest, source: PeerId, may_answer: MayAnswer = always) -> bool:
        """Answer a group that was pushed again with its storage receipt, unless none is remembered (False)."""
        receipt = self._receipts.receipt_for(name)
        is_new = bool(receipt) and (source, receipt) not in self._sent_receipts
        if is_new and may_answer(len(receipt) + _PUSH_OVERHEAD_BYTES):
            self._sent_receipts.add((source, receipt))
            self.outbox.append((source, Push(receipt)))
        return bool(receipt)

    def _offer(self, peer: PeerId, name: Digest) -> None:
        self.free.offered(peer, name)
        self.outbox.append((peer, Offer((name,))))

    def _draw_carriers(self, peers: list[PeerId]) -> list[PeerId]:
        return draw(peers, self._config.carriers, self._rng)

    def on_offer(self, message: Offer, source: PeerId) -> None:
        """Ask for new envelopes, unless another peer was asked already."""
        fresh = []
        for name in _digests_of(message.digests):
            if name in self._seen:
                self._announcements.mark_known(source, name)
                if self._may_be_turned_away(name):
                    fresh.append(name)
            elif self._offers.add(name, source):
                fresh.append(name)
        if fresh:
            self.outbox.append((source, Want(tuple(fresh))))

    def _may_be_turned_away(self, name: Digest) -> bool:
        """Whether this is a learner's node, which accepted a group that the learner then had no room for: its author
        sends it again, over whichever peers."""
        is_group = self.kind_of_recent(name) in (None, *GROUP_KINDS) and not self._store.is_pinned(name)
        return self._is_learner and is_group and not self._receipts.receipt_for(name)

    def keep_group(self, opened: Opened) -> None:
        """Keep a group that was pushed again and had made room for others, to pass it on."""
        if opened.kind in GROUP_KINDS:
            self._store.add(opened)

    def tell(self, name: Digest, news: Sequence[bytes], peer: PeerId, may_answer: MayAnswer) -> None:
        """Push envelopes that a peer seems to lack, of which the pinned one of this `name` is the last: the first time
        as an announcement, then for credit."""
        is_free = self.free.is_free(peer, name, is_pinned=True)
        if may_answer(sum(len(raw) + _PUSH_OVERHEAD_BYTES for raw in news), offered=is_free):
            self.free.sent(peer, name, is_pinned=True)
            self.outbox.extend((peer, Push(raw)) for raw in news)

    def on_want(self, message: Want, source: PeerId, may_answer: MayAnswer = always) -> None:
        """Push the envelopes that are still kept, each once and within `answer_bytes` and the budget; ignore the rest.

        What this node offered to the peer, and what everybody needs (pinned), it may have once for nothing.
        """
        for name in _digests_of(message.digests):
            self._announcements.mark_known(source, name)
            raw = self._store.get(name)
            answered = self._answered_bytes.get(source, 0) + len(raw)
            is_pinned = self._store.is_pinned(name)
            is_free = self.free.is_free(source, name, is_pinned=is_pinned)
            if not raw or answered > self._config.answer_bytes:
                continue
            if may_answer(len(raw) + _PUSH_OVERHEAD_BYTES, offered=is_free):
                self._answered_bytes[source] = answered
                self.free.sent(source, name, is_pinned=is_pinned)
                self.outbox.append((source, Push(raw)))

    def flush(self, now: float) -> None:
        """Put the offers that are due into `outbox`; call it before each drain."""
        for peer, message in self._announcements.take_due(now):
            self.outbox.append((peer, message))
            for name in message.digests:
                self.free.offered(peer, Digest(name))

    def next_deadline(self) -> float:
        """When `flush` next has offers to send."""
        return self._announcements.next_deadline()

    def drained(self) -> None:
        """The owner has emptied `outbox`: reset the answer budget of every peer."""
        self._answered_bytes.clear()
        self._sent_receipts.clear()

    @property
    def has_open_offers(self) -> bool:
        """Whether an envelope was offered here and has not come."""
        return bool(self._offers)

    def retry_wants(self) -> None:
        """Ask another offerer for each envelope that the last one asked did not push."""
        step = limits.MAX_DIGESTS_PER_MESSAGE
        for peer, names in self._offers.next_to_ask(self._rng).items():
            self.outbox.extend((peer, Want(tuple(names[i : i + step]))) for i in range(0, len(names), step))


def _digests_of(digests: tuple[bytes, ...]) -> list[Digest]:
    if len(digests) > limits.MAX_DIGESTS_PER_MESSAGE:
        raise RemoteProtocolError(f"{len(digests)} digests in one message")
    return [received_digest(raw) for raw in dict.fromkeys(digests)]
