"""Parts of a node that both of its phases share, before and after the run manifest is known."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Container, Iterable, Sequence
from functools import partial

from p2prl.errors import RemoteProtocolError
from p2prl.protocol import frames
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import open_envelope
from p2prl.protocol.identity import Identity, PeerId
from p2prl.protocol.kinds import Kind, Role
from p2prl.protocol.link_messages import Chunk, FollowPiece, FollowQuery, Padding
from p2prl.protocol.signed_group import GROUP_KINDS
from p2prl.protocol.wire_codec import Wire
from p2prl.swarm import signals
from p2prl.swarm.answer_budget import AnswerBudget, Asker
from p2prl.swarm.chunk_faults import BadChunkError
from p2prl.swarm.disk_quota import DiskQuota
from p2prl.swarm.events import (
    Command,
    EnvelopeArrived,
    Event,
    GroupFetched,
    PeerBanned,
    PeersChanged,
    Send,
)
from p2prl.swarm.following import AskedPieces, FollowGate
from p2prl.swarm.gossip.forwarding import Gossip
from p2prl.swarm.gossip.head_witnesses import FinalHead, HeadWitnesses
from p2prl.swarm.gossip.ledger_sync import LedgerSync
from p2prl.swarm.gossip.verdict_gate import VerdictGate
from p2prl.swarm.groups.group_bodies import GroupBodies
from p2prl.swarm.message_limits import MessageLimits, Traffic
from p2prl.swarm.node_config import NodeConfig
from p2prl.swarm.peers.connections import Connections
from p2prl.swarm.peers.local_peer import LocalPeer
from p2prl.swarm.ports import BlobStore, Randomness
from p2prl.swarm.relay.chunk_relay import Relay

_NEWS_PADDING_BYTES = 1_024
"""Sent on each new link while no version is known. A peer that restarts may still have its link on the other side, and
with it the newest version, and pays for the next copy: with this, for one of 8 KiB at once."""

Outbox = list[tuple[PeerId, Wire]]


def take_frames(outboxes: Iterable[Outbox], *, linked: Container[PeerId]) -> list[Send]:
    """Empty the outboxes into frames, control before bulk.

    Control messages to peers that are not `linked` are dropped. A chunk is sent regardless: the relay waits for the
    report that it was sent.
    """
    by_peer: dict[PeerId, list[bytes]] = {}
    bulk: list[Send] = []
    for outbox in outboxes:
        for peer, message in outbox:
            if isinstance(message, Chunk):
                bulk.append(Send(peer, frames.pack(message), bulk=True))
            elif peer in linked:
                by_peer.setdefault(peer, []).append(frames.pack(message))
        outbox.clear()
    control = [Send(peer, frame, bulk=False) for peer, packed in by_peer.items() for frame in frames.join(packed)]
    return control + bulk


class NodeCore:
    """Links, gossip, ledger pages, group bodies and chunk relay of a node, and the events for its owner.

    The parts are attributes, because a node has them all from its start and its phases share them.
    """

    def __init__(
        self,
        identity: Identity,
        run: Digest,
        store: BlobStore,
        rng: Randomness,
        config: NodeConfig,
        now: float,
        group_store: BlobStore | None = None,
    ) -> None:
        self.config = config
        self.rng = rng
        self.local = LocalPeer(identity, config.role, run, started_ms=int(now * 1000), is_listed=config.is_listed)
        self.local.price = config.price
        self.connections = Connections(self.local, rng, config.connections, now)
        self.gossip = Gossip(config.role, rng, config.gossip)
        self.ledger = LedgerSync(rng)
        self.entry = MessageLimits()
        self.followers = FollowGate(
            run=run, learner=identity.public_key, upload_bytes_s=config.relay.upload_bytes_s, entry=self.entry
        )
        self.asked_pieces = AskedPieces()
        self.answers = AnswerBudget(self._asker, config.relay.upload_bytes_s)
        self.final_head = FinalHead()
        self.witnesses = HeadWitnesses()
        self.verdicts = VerdictGate()
        self.quota = DiskQuota(config.disk_bytes)
        self.relay = Relay(store, rng, config.relay, self.quota)
        self.relay.use_circuits_last(lambda peer: self.connections.is_relayed(peer))
        self.relay.bound_announcements(
            lambda peer, size, now, free: self.answers.take(peer, size, now, offered=free, may_wait=not free)
        )
        self.relay.feed_public_first(lambda peer: self.connections.is_public(peer))
        self.groups = GroupBodies(group_store or store, config.groups, is_learner=self.is_learner, quota=self.quota)
        self._bulk: dict[PeerId, deque[bool]] = {}
        """Bulk frames that the shell is sending to each peer: whether it is a part of a group."""
        self.events: deque[Event] = deque()
        self._reported_roles: tuple[tuple[str, int], ...] = ()

    def on_records(self, records: list[bytes], now: float) -> None:
        """Take in the directory's records, and report to a learner who agrees to stand by when that has changed."""
        discovery = self.connections.discovery
        before = discovery.offers
        discovery.on_records(records, now)
        if self.config.role is Role.LEARNER and discovery.offers != before:
            self.events.append(signals.StandbyOffers(discovery.offers))

    def is_learner(self, peer: PeerId) -> bool:
        """Whether a peer is the run's learner, by the key that signed the run manifest."""
        return peer == self.local.learner

    def roles(self) -> tuple[tuple[str, int], ...]:
        """Number of linked peers by role name. A peer that claims to be the learner without its key is a listener."""
        links = self.connections.links
        counts = Counter(link.role for link in links.values())
        named = {role.name.lower(): count for role, count in counts.items() if role is not None}
        learner = None if self.local.learner is None else links.get(self.local.learner)
        false_learners = counts[Role.LEARNER] - (learner is not None and learner.role is Role.LEARNER)
        if false_learners:
            named |= {"learner": counts[Role.LEARNER] - false_learners, "listener": false_learners}
        return tuple(sorted((name, count) for name, count in named.items() if count))

    def has_peers(self) -> bool:
        """Whether any linked peer has said hello."""
        return any(link.role is not None for link in self.connections.links.values())

    def register_role(self, peer: PeerId, role: Role) -> None:
        """Tell gossip and relay a peer's role. A false learner is sent what a scoreboard is, and no groups."""
        false_learner = role is Role.LEARNER and not self.is_learner(peer)
        self.gossip.set_role(peer, Role.BOARD if false_learner else role)
        self.relay.add_neighbor(peer, is_source=self.is_learner(peer))

    def report_roles(self) -> None:
        """Report the linked peers by role, if they changed."""
        roles = self.roles()
        if roles != self._reported_roles:
            self._reported_roles = roles
            self.events.append(PeersChanged(roles))

    def remove_peer(self, peer: PeerId) -> None:
        """Forget a peer whose link is gone."""
        self.final_head.remove_peer(peer)
        self.witnesses.remove_peer(peer)
        self.gossip.remove_peer(peer)
        self.answers.remove_peer(peer)
        self.relay.remove_neighbor(peer)
        self.groups.remove_peer(peer)
        self.report_roles()

    def lost_peer(self, peer: PeerId) -> None:
        """Forget a peer whose link has failed, and tell a learner, which may have counted on its work."""
        self.remove_peer(peer)
        if self.config.role is Role.LEARNER:
            self.events.append(signals.LinkLost(peer))

    def punish(self, peer: PeerId, error: RemoteProtocolError, now: float) -> None:
        """Count a peer's fault, and ban it if the fault proves malice or exceeds the limit."""
        if isinstance(error, BadChunkError) and error.is_leftover:
            return
        if self.connections.fault(peer, now, proven=isinstance(error, BadChunkError) and error.is_proof):
            self.remove_peer(peer)
            self.events.append(PeerBanned(peer, str(error)))

    def on_repeated(self, name: Digest, raw: bytes, source: PeerId, now: float) -> None:
        """Handle an envelope that was accepted before.

        A volunteer repeats a group until the learner's storage receipt reaches it: send it the receipt if one is
        remembered, otherwise forward the group again, or let the learner acknowledge it again.
        """
        may_answer = partial(self.answers.take, source, now=now)
        if self.gossip.answer_repeated(name, source, may_answer):
            return
        if self.config.role is not Role.LEARNER:
            if self.gossip.kind_of_recent(name) is None:
                self.gossip.keep_group(open_envelope(raw, now=now))
            self.gossip.spread_again(name, source=source)
            if self.gossip.kind_of_recent(name) is Kind.GROUP_HEADER:
                self.groups.note(open_envelope(raw, now=now), source)
        elif (opened := open_envelope(raw, now=now)).kind in GROUP_KINDS:
            if opened.kind is Kind.GROUP_HEADER:
                self.groups.note(opened, source)
            self.events.append(EnvelopeArrived(opened, source))

    def admits(self, kind: Traffic, peer: PeerId, now: float) -> bool:
        """Whether a message may cost this node anything: the first look, at its sender only."""
        is_known = self.connections.is_known(peer, now)
        return self.entry.admits(kind, peer, self.connections.subnets.of(peer), now, is_known=is_known)

    def set_upload_rate(self, bytes_s: float) -> None:
        """Set the measured uplink rate, bytes/s."""
        self.relay.set_upload_rate(bytes_s)
        self.answers.set_rate(bytes_s)

    def allow_uploads(self, allowed: bool) -> None:
        """Set whether weights are uploaded, and strangers answered, from now on."""
        self.answers.is_open = allowed
        self.relay.allow_uploads(allowed)
        self.groups.allow_relaying(allowed)

    def pay_for_news(self, peer: PeerId) -> None:
        """Send padding on a new link while no version is known."""
        if self.local.newest_version < 0 and self.config.role is not Role.LEARNER:
            self.send(peer, Padding(bytes(_NEWS_PADDING_BYTES)))

    def ask_ledger(self, from_height: int) -> None:
        """Ask a peer that has more of the ledger for the next page."""
        self.ledger.ask({peer: link.ledger_height for peer, link in self.connections.links.items()}, from_height)

    def on_ledger_query(self, peer: PeerId, from_height: int, now: float) -> None:
        """Ask the owner for a page of the ledger, if the peer may be sent any of it."""
        may_query = self.ledger.may_query(peer, now) and self.admits(Traffic.QUERY, peer, now)
        if 0 <= from_height <= self.local.ledger_height and may_query and self.answers.room(peer, now) > 0:
            self.events.append(signals.LedgerWanted(peer, from_height))

    def send_ledger(self, peer: PeerId, from_height: int, entries: Sequence[bytes], now: float) -> None:
        """Answer a ledger query, as far as the budget goes; without room for an entry it is not answered."""
        room = self.answers.room(peer, now)
        size_bytes = self.ledger.answer(peer, from_height, entries, room)
        if size_bytes:
            self.answers.take(peer, size_bytes, now)

    def on_follow_query(self, query: FollowQuery, peer: PeerId, now: float) -> None:
        """Report what a standby learner asks for. Raises `RemoteProtocolError` for one without the owner's permit."""
        if self.config.role is not Role.LEARNER:
            return
        if self.followers.admits(query, peer, self.connections.subnets.of(peer), now):
            self.events.append(signals.FollowWanted(peer, query.held, query.copy, query.file, query.piece))

    def on_follow_piece(self, piece: FollowPiece, peer: PeerId) -> None:
        """Report an answer of the learner that was asked for; any other is ignored."""
        if self.is_learner(peer) and self.asked_pieces.takes(piece):
            self.events.append(signals.FollowArrived(piece.copy, piece.file, piece.piece, piece.data))

    def order_follow(self, order: signals.FollowOrder) -> None:
        """Ask the learner for a piece, if it is linked; or answer a follower."""
        match order:
            case signals.AskFollow(permit=permit, held=held, copy=copy, file=file, piece=piece):
                if self.local.learner is not None:
                    query = FollowQuery(permit, held, copy, file, piece)
                    self.send(self.local.learner, self.asked_pieces.ask(query))
            case signals.SendFollow(peer=peer, copy=copy, file=file, piece=piece, data=data):
                self.send(PeerId(peer), FollowPiece(copy, file, piece, data))

    def send(self, peer: PeerId, message: Wire) -> None:
        """Send a control message to a peer."""
        self.gossip.outbox.append((peer, message))

    def collect_groups(self) -> None:
        """Report bodies that are complete, and own ones that are needed again."""
        self.events.extend(GroupFetched(header.opened, header.ref.root) for header in self.groups.take_completed())
        self.events.extend(signals.GroupBodyWanted(name) for name in self.groups.take_wanted())

    def upload_done(self, peer: PeerId, delivered: bool = True) -> None:
        """The shell has sent the oldest bulk frame to a peer, or, if it was not `delivered`, failed to."""
        frames = self._bulk.get(peer)
        is_part = frames.popleft() if frames else False
        if not frames:
            self._bulk.pop(peer, None)
        if is_part:
            self.groups.upload_done(peer)
        else:
            self.relay.upload_done(peer, delivered)

    def take_commands(self, now: float) -> list[Command]:
        """Empty the outboxes: peers to dial, directory use, and frames to send."""
        self.relay.flush(now)
        self.gossip.flush(now)
        self.groups.flush(now)
        outboxes = (self.connections.outbox, self.gossip.outbox, self.ledger.outbox, self.relay.outbox)
        sends = take_frames(outboxes, linked=self.connections.links)
        parts = take_frames((self.groups.outbox,), linked=self.connections.links)
        self.gossip.drained()
        self._note_bulk(sends, is_part=False)
        self._note_bulk(parts, is_part=True)
        commands: list[Command] = [*self.connections.commands, *sends, *parts]
        self.connections.commands.clear()
        return commands

    def _asker(self, peer: PeerId, now: float) -> Asker:
        connections = self.connections
        return Asker(
            connections.subnets.of(peer),
            has_standing=connections.standings.is_known(peer, now),
            is_chosen=connections.is_known(peer, now),
            is_learner=self.is_learner(peer),
        )

    def _note_bulk(self, sends: list[Send], *, is_part: bool) -> None:
        for send in sends:
            if send.bulk:
                self._bulk.setdefault(send.peer, deque()).append(is_part)


def is_of_following(core: NodeCore, message: Wire, source: PeerId, now: float) -> bool:
    """Handle a question or an answer of a standby learner; False for every other message."""
    match message:
        case FollowQuery():
            core.on_follow_query(message, source, now)
        case FollowPiece():
            core.on_follow_piece(message, source)
        case _:
            return False
    return True
