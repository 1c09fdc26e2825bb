"""A node of the swarm: neighbourhood, gossip, policies and relay as one state machine.

The owner is a shell (`p2prl.net.process.node_driver`, over sockets) or the simulator (virtual time). It feeds
`receive`,
`connected`, `lost`, `looked_up`, `upload_done` and `handle_timer`, and drains `commands` and `next_event`. Nothing in
here sleeps, logs, or reads a clock, a socket or a random source of its own.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from p2prl.errors import LocalProtocolError, RemoteProtocolError, StaleWorkError
from p2prl.protocol import frames, limits
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened, body_of, envelope_digest, open_envelope, seal
from p2prl.protocol.identity import Identity, PeerId, peer_id_of, public_key_of
from p2prl.protocol.kinds import Kind, Role
from p2prl.protocol.link_messages import Hello, LedgerPage, LedgerQuery, Offer, Push, Want
from p2prl.protocol.manifests import RunManifest
from p2prl.protocol.peer_messages import Introduction
from p2prl.protocol.wire_codec import Wire
from p2prl.swarm.events import (
    ClockOff,
    Command,
    EnvelopeArrived,
    Event,
    LedgerArrived,
    LedgerWanted,
    PeerBanned,
    PeersChanged,
    RunKnown,
    WireMismatch,
)
from p2prl.swarm.gossip.final_head import FinalHead
from p2prl.swarm.gossip.gossip import AUDIENCE, Gossip, GossipConfig
from p2prl.swarm.gossip.ledger_sync import LedgerPages
from p2prl.swarm.gossip.validation import check_envelope
from p2prl.swarm.outbox import take_frames
from p2prl.swarm.peers.connections import Connections, ConnectionsConfig, LocalPeer
from p2prl.swarm.peers.introductions import RELAYING, Introductions
from p2prl.swarm.peers.topology import Candidate, region_of
from p2prl.swarm.policies.sync import PolicySync
from p2prl.swarm.policies.sync_config import FetchStats, SyncConfig
from p2prl.swarm.ports import BlobStore, Randomness
from p2prl.swarm.relay.relay import ForeignChunkError, Relay, RelayConfig, RelayStats

_RETRY_WANTS_S = 2.0
"""How long an offered envelope may stay unpushed before the next offerer is asked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeConfig:
    """What a node is there for and how it behaves."""

    role: Role
    """Decides what neighbours send it unasked."""
    fetch_policies: bool = True
    """Whether it fetches run files and the newest weights; a board does not."""
    keep_versions: int = 4
    """Newest policy versions kept and served. Two would do for oneself; slower neighbours need the rest."""
    rebuilds: bool = False
    """Whether its owner decodes patches when asked to (`PatchesReady`); otherwise weights are fetched whole."""
    awaits_base: bool = False
    """Whether its owner may have weights to start from, and says so before any are fetched (`Node.start_from`)."""
    disk_bytes: int = 0
    """Most bytes of weights and patches kept, as far as what is in use allows; 0 sets no bound but `keep_versions`."""
    neighbourhood: ConnectionsConfig = field(default_factory=ConnectionsConfig)
    gossip: GossipConfig = field(default_factory=GossipConfig)
    relay: RelayConfig = field(default_factory=RelayConfig)


class Node:
    """One peer's part in one run."""

    def __init__(
        self, identity: Identity, run: Digest, store: BlobStore, rng: Randomness, config: NodeConfig, now: float
    ) -> None:
        self._config = config
        self._me = LocalPeer(identity, config.role, run)
        self._links = Connections(self._me, rng, config.neighbourhood, now)
        self._gossip = Gossip(config.role, rng, config.gossip)
        self._pages = LedgerPages(rng)
        self._last_words = FinalHead()
        self._relay = Relay(store, rng, config.relay)
        self._introductions = Introductions(rng, now) if config.role is Role.LEARNER else None
        self._following: PolicySync | None = None
        self._learner = b""
        self._next_retry = now + _RETRY_WANTS_S
        self._born = now
        self._reported_roles: tuple[tuple[str, int], ...] = ()
        self._clock_reported = False
        self._events: deque[Event] = deque()

    # --- what the owner does -----------------------------------------------------------------------------------

    def begin(self, manifest: bytes, policies: Iterable[bytes] = ()) -> None:
        """Start with a run manifest already on disk, and with manifests of versions whose weights are there too.

        Raises when it is not the run of the join link, or a policy is not the learner's.
        """
        self._learn_run(open_envelope(manifest, now=None), self._born)
        assert self._following is not None
        for raw in policies:
            self._following.hold(open_envelope(raw, now=None), self._born)
        self._note_policies()

    def announce(self, addresses: tuple[str, ...], now: float) -> None:
        """Tell the directory where this node can be dialled; cheap to repeat."""
        self._links.readdress(addresses[: limits.MAX_ADDRESSES], now)

    def set_ledger_height(self, height: int) -> None:
        """Tell neighbours how many ledger entries this node can serve."""
        if height != self._me.ledger_height:
            self._me.ledger_height = height

    def publish(self, raw: bytes, now: float) -> None:
        """Spread an envelope of our own; again, if it was spread before. A head of the learner's may come from disk."""
        opened = open_envelope(raw, now=None)
        own = opened.author == self._me.identity.public_key
        if not own and opened.kind is not Kind.LEDGER_HEAD:
            raise LocalProtocolError("a node publishes only what its own key signed, and its learner's heads")
        if opened.kind in (Kind.POLICY_MANIFEST, Kind.POLICY_HEAD):
            try:
                self._admit_policy(opened, now, own=True)
            except StaleWorkError:
                return  # an earlier word of ours, said again
        elif opened.kind is Kind.LEDGER_HEAD:
            self._admit(opened, now)
        self._gossip.spread(opened, source=None)

    def fetch_policy(self, name: Digest, now: float) -> None:
        """Fetch a particular policy by its manifest envelope's digest, besides the newest; not before `RunKnown`."""
        if self._following is not None:
            self._following.request(name, now)

    def start_from(self, state: Digest | None, now: float) -> None:
        """The owner holds words with this digest, and decodes patches that start from them; or it holds none."""
        if self._following is not None:
            self._following.start_from(state, now)

    def rebuilt(self, name: Digest, ok: bool, now: float) -> None:
        """The owner has decoded what `PatchesReady` handed it, and the weights lie where the store looks for them; or
        it could not (`ok` False), and another way is taken."""
        if self._following is not None:
            self._following.rebuilt(name, ok, now)

    def send_ledger(self, peer: PeerId, from_height: int, entries: tuple[bytes, ...]) -> None:
        """Answer a `LedgerWanted` event with as many of these entries as one message may hold."""
        self._pages.answer(peer, from_height, entries)

    def ask_ledger(self, from_height: int) -> None:
        """Ask a neighbour that says it holds more of the ledger for what follows `from_height`."""
        self._pages.ask({peer: n.ledger_height for peer, n in self._links.links.items()}, from_height)

    def set_upload(self, bytes_s: float) -> None:
        """What chunks may use of the uplink was measured, bytes/s."""
        self._relay.set_upload(bytes_s)

    def allow_uploads(self, allowed: bool) -> None:
        """Whether weights are given to anybody from now on; cheap to repeat."""
        self._relay.allow_uploads(allowed)

    @property
    def relay_stats(self) -> RelayStats:
        """Weight bytes moved so far."""
        return self._relay.stats

    @property
    def fetch_stats(self) -> FetchStats:
        """What the versions cost that came here."""
        return FetchStats() if self._following is None else self._following.stats

    def roles(self) -> tuple[tuple[str, int], ...]:
        """Neighbours by role name. Whoever calls itself a learner without the run's key only listens."""
        counts = Counter(
            "listener" if n.role is Role.LEARNER and not self._is_learner(peer) else n.role.name.lower()
            for peer, n in self._links.links.items()
            if n.role is not None
        )
        return tuple(sorted(counts.items()))

    def transfer_progress(self) -> tuple[int, int, int]:
        """(version, chunks held, chunks in all) of the policy being fetched; version −1 when idle."""
        return (-1, 0, 0) if self._following is None else self._following.progress()

    # --- what the shell reports --------------------------------------------------------------------------------

    def connected(self, peer: PeerId, now: float) -> None:
        """A link to `peer` is up."""
        if self._links.connected(peer, now) and self._following is None:
            self._gossip.ask(self._me.run, [peer])

    def lost(self, peer: PeerId, now: float) -> None:
        """The link to `peer` failed."""
        if self._links.lost(peer, now):
            self._forget(peer)

    def dial_failed(self, peer: PeerId, now: float) -> None:
        """A `Dial` came to nothing."""
        self._links.dial_failed(peer, now)

    def looked_up(self, records: list[bytes], now: float) -> None:
        """The directory answered a `LookUp`."""
        self._links.on_records(records, now)

    def upload_done(self, peer: PeerId) -> None:
        """A bulk frame to `peer` has been handed over, or has failed."""
        self._relay.upload_done(peer)

    def receive(self, frame: bytes, source: PeerId, now: float) -> None:
        """A frame arrived on the link to `source`. Never raises on any bytes."""
        if self._links.is_banned(source, now):
            return
        self.connected(source, now)
        try:
            for message in frames.unpack(frame):
                link = self._links.links.get(source)
                if link is None:
                    return
                link.heard_at = now
                try:
                    self._receive_message(message, source, now)
                except StaleWorkError:
                    continue  # nobody's fault, and no reason to lose what shares its frame
                except RemoteProtocolError as error:
                    self._fault(source, error, now)
        except RemoteProtocolError as error:
            self._fault(source, error, now)

    def handle_timer(self, now: float) -> None:
        """Do what time demands."""
        for peer in self._links.handle_timer(now):
            self._forget(peer)
        self._relay.handle_timer(now)
        if now >= self._next_retry:
            self._next_retry = now + _RETRY_WANTS_S
            self._gossip.retry_wants()
            if self._following is None:
                self._gossip.ask_all(self._me.run)
            else:
                self._following.drop_stalled(now)
                self._following.check_freshness(now)
        if self._introductions is not None and now >= self._introductions.next_deadline():
            self._introduce(self._introductions, now)
        offset = self._links.clock_offset_s()
        if offset is not None and not self._clock_reported:
            self._events.append(ClockOff(offset))
        self._clock_reported = offset is not None
        self._after(now)

    def next_deadline(self) -> float:
        """When `handle_timer` wants to run next."""
        relay = self._relay.next_deadline()
        own = min(self._links.next_deadline(), self._gossip.next_deadline(), self._next_retry)
        if self._introductions is not None:
            own = min(own, self._introductions.next_deadline())
        return own if relay is None else min(own, relay)

    def commands(self, now: float) -> list[Command]:
        """What the shell must do now: frames to send, peers to dial, the directory to use."""
        self._after(now)
        self._relay.flush(now)
        self._gossip.flush(now)
        outboxes = (self._links.outbox, self._gossip.outbox, self._pages.outbox, self._relay.outbox)
        sends = take_frames(outboxes, linked=self._links.links)
        self._gossip.drained()
        commands: list[Command] = [*self._links.commands, *sends]
        self._links.commands.clear()
        return commands

    def next_event(self) -> Event | None:
        """The oldest thing the owner has not been told."""
        return self._events.popleft() if self._events else None

    # --- messages ----------------------------------------------------------------------------------------------

    def _receive_message(self, message: Wire, source: PeerId, now: float) -> None:
        match message:
            case Hello():
                self._on_hello(message, source, now)
            case Offer():
                self._gossip.on_offer(message, source)
            case Want():
                self._gossip.on_want(message, source)
            case Push(envelope=raw):
                self._on_push(raw, source, now)
            case LedgerQuery(from_height=height):
                if 0 <= height <= self._me.ledger_height and self._pages.may_ask(source, now):
                    self._events.append(LedgerWanted(source, height))
            case LedgerPage(from_height=height, entries=entries):
                if len(entries) <= limits.MAX_LEDGER_ENTRIES_PER_REPLY:
                    self._events.append(LedgerArrived(source, height, entries))
            case _:
                self._relay.receive(message, source, now)  # everything else is the relay's, or nobody's

    def _on_hello(self, message: Hello, source: PeerId, now: float) -> None:
        if message.wire_version != limits.WIRE_VERSION:
            self._events.append(WireMismatch(source, message.wire_version))
            self.lost(source, now)
            return
        known = self._links.links.get(source)
        role_before = None if known is None else known.role
        link = self._links.on_hello(message, source, now)
        if link is None or link.role is None:
            self._forget(source)
            return
        if link.role is not role_before:
            self._tell_role(source, link.role)
            self._relay.add_neighbour(source, is_source=self._is_learner(source))
            self._report_roles()
        newest = self._following.newest if self._following else None
        if newest is not None and newest.manifest.version > message.newest_version:
            head = self._following.head if self._following else None
            if head is not None:
                self._send(source, Push(head.raw))  # first: it lists the ways to the version
            self._send(source, Push(newest.raw))
        if farewell := self._last_words.for_neighbour(source, link.role, now):
            self._send(source, Push(farewell))

    def _on_push(self, raw: bytes, source: PeerId, now: float) -> None:
        name = envelope_digest(raw)
        if name == self._me.run and self._following is None:
            self._learn_run(open_envelope(raw, now=now), now)
            return
        if not self._gossip.is_new(name):
            # A volunteer repeats a group until the learner's storage receipt reaches it: let the owner answer again.
            if self._config.role is not Role.LEARNER:
                self._gossip.spread_again(name, source=source)
            elif (opened := open_envelope(raw, now=now)).kind is Kind.ROLLOUT_GROUP:
                self._events.append(EnvelopeArrived(opened, source))
            return
        if self._following is None:
            return
        opened = open_envelope(raw, now=now)
        self._admit(opened, now)
        self._gossip.spread(opened, source=source)
        if self._config.role in AUDIENCE[opened.kind]:
            self._events.append(EnvelopeArrived(opened, source))

    def _admit(self, opened: Opened, now: float) -> None:
        """Everything checked before an envelope is forwarded. Raises `RemoteProtocolError`."""
        check_envelope(opened, run=self._me.run, learner=self._learner)
        self._last_words.note_head(opened, now)
        if opened.kind in (Kind.POLICY_MANIFEST, Kind.POLICY_HEAD):
            self._admit_policy(opened, now, own=False)
        elif opened.kind is Kind.INTRODUCTION:
            self._links.on_introduction(body_of(opened, Introduction), opened.sent_ms, now)

    def _introduce(self, introductions: Introductions, now: float) -> None:
        """Name neighbours to those linked peers that relay weights and need some."""
        swarm = {
            peer: Candidate(self._relay.upload_of(peer), region_of(self._links.addresses_of(peer)))
            for peer, link in self._links.links.items()
            if link.role in RELAYING
        }
        for peer, named in introductions.take_due(swarm, now):
            message = Introduction(public_key_of(peer), tuple(map(public_key_of, named)))
            self._send(peer, Push(seal(self._me.identity, message, run=self._me.run, now=now)))

    def _is_learner(self, peer: PeerId) -> bool:
        return peer == self._me.learner

    def _tell_role(self, peer: PeerId, role: Role) -> None:
        """Give gossip a neighbour's role. A learner without the run's key is sent what a board is, and no groups."""
        self._gossip.set_role(peer, Role.BOARD if role is Role.LEARNER and not self._is_learner(peer) else role)

    # --- run and policies --------------------------------------------------------------------------------------

    def _learn_run(self, opened: Opened, now: float) -> None:
        manifest = body_of(opened, RunManifest)
        if opened.digest != self._me.run or opened.author != manifest.learner:
            raise RemoteProtocolError("run manifest does not match the join link")
        manifest.check()
        self._learner = manifest.learner
        self._me.learner = peer_id_of(manifest.learner)
        self._following = PolicySync(
            manifest,
            self._relay,
            self._gossip,
            SyncConfig(
                policies=self._config.fetch_policies and self._config.role is not Role.LEARNER,
                rebuilds=self._config.rebuilds,
                awaits_base=self._config.awaits_base,
                carries=self._config.role is Role.SEEDER,
                keep_versions=self._config.keep_versions,
                disk_bytes=self._config.disk_bytes,
            ),
        )
        self._gossip.pin(opened.raw, opened.digest)
        self._events.append(RunKnown(manifest, opened.raw))
        for peer, link in self._links.links.items():
            if link.role is not None:
                self._tell_role(peer, link.role)
                self._relay.add_neighbour(peer, is_source=self._is_learner(peer))
        self._report_roles()
        if self._config.fetch_policies:
            self._following.fetch_files(manifest, now)
        self._me.changed = True

    def _admit_policy(self, opened: Opened, now: float, *, own: bool) -> None:
        if self._following is None:
            raise LocalProtocolError("a policy before its run")
        try:
            if opened.kind is Kind.POLICY_HEAD:
                self._following.admit_head(opened, now)
            else:
                self._following.admit(opened, now, own=own)
        finally:
            self._note_policies()

    def _note_policies(self) -> None:
        """Pass on what following the policies brought."""
        assert self._following is not None
        self._events.extend(self._following.events)
        self._following.events.clear()
        newest = self._following.newest
        if newest is not None:
            self._me.newest_version = newest.manifest.version
            self._last_words.note_policy(newest.manifest.step)

    def _after(self, now: float) -> None:
        """Let what arrived have its consequences."""
        if self._following is not None:
            self._following.advance(now)
            self._note_policies()

    # --- links -------------------------------------------------------------------------------------------------

    def _send(self, peer: PeerId, message: Wire) -> None:
        self._gossip.outbox.append((peer, message))

    def _forget(self, peer: PeerId) -> None:
        self._last_words.forget(peer)
        self._gossip.remove_neighbour(peer)
        self._relay.remove_neighbour(peer)
        self._report_roles()

    def _report_roles(self) -> None:
        roles = self.roles()
        if roles != self._reported_roles:
            self._reported_roles = roles
            self._events.append(PeersChanged(roles))

    def _fault(self, peer: PeerId, error: RemoteProtocolError, now: float) -> None:
        if self._links.fault(peer, now, proven=isinstance(error, ForeignChunkError)):
            self._forget(peer)
            self._events.append(PeerBanned(peer, str(error)))
