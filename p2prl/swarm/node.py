"""A node of the swarm: peer links, gossip, policy versions and chunk relay as one state machine.

Its owner is a shell over sockets (`p2prl.net.process.node_driver`) or the simulator (virtual time). The owner calls
`receive`, `connected`, `lost`, `looked_up`, `upload_done` and `handle_timer`, and drains `commands` and `next_event`.
Nothing here sleeps, logs, or reads a clock or socket; the random source is passed in.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from p2prl.errors import LocalProtocolError, RemoteProtocolError, StaleWorkError
from p2prl.protocol import frames, limits, wire_version
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import envelope_digest, open_envelope
from p2prl.protocol.identity import Identity, PeerId
from p2prl.protocol.kinds import Kind
from p2prl.protocol.link_messages import (
    Chunk,
    ChunkRefused,
    ChunkRequest,
    Hello,
    LedgerPage,
    LedgerQuery,
    Meeting,
    MeetingRequest,
    Offer,
    Push,
    Want,
    place_of,
)
from p2prl.protocol.wire_codec import Wire
from p2prl.swarm import signals
from p2prl.swarm.events import ClockOff, Command, Event, WireMismatch
from p2prl.swarm.message_limits import traffic_of
from p2prl.swarm.node_before_manifest import AwaitingManifest
from p2prl.swarm.node_config import NodeConfig
from p2prl.swarm.node_core import NodeCore, is_of_following
from p2prl.swarm.node_in_run import Running
from p2prl.swarm.peers.connections import Connections
from p2prl.swarm.peers.dial_rules import DialRules, Network
from p2prl.swarm.peers.link_admission import LinkClass
from p2prl.swarm.peers.reachability import foremost
from p2prl.swarm.policies.version_download import DownloadStats
from p2prl.swarm.ports import BlobStore, Randomness
from p2prl.swarm.relay.state import RelayStats

_RETRY_S = 2.0
"""How long an offered envelope may stay unpushed before the next peer that offered it is asked."""

_QUIET_RETRY_S = 31.0
"""The same while nothing is awaited, to notice a silent learner: a node that waits for nothing sleeps. Other timers,
such as the directory's, bring it forward."""


class Node:
    """One peer's part in one run."""

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
        """`group_store` keeps bodies of groups; without one they are beside the weights in `store`."""
        self._core = NodeCore(identity, run, store, rng, config, now, group_store)
        self._awaiting = AwaitingManifest(self._core)
        self._running: Running | None = None
        """Takes part in the run; None until its manifest is known, when `_awaiting` asks for it."""
        self._born = now
        self._retried_at = now
        self._clock_reported = False

    def begin(self, manifest: bytes, policies: Iterable[bytes] = ()) -> None:
        """Start with a run manifest already on disk, and with manifests of versions whose weights are there too.

        Raises when it is not the run of the join link, or the learner did not sign a version.
        """
        self._running = Running(self._core, open_envelope(manifest, now=None), self._born)
        self._running.hold(policies, self._born)

    def publish(self, raw: bytes, now: float) -> None:
        """Spread an own envelope, again if it was spread before, or a ledger head or countersignature from disk."""
        opened = open_envelope(raw, now=None)
        own = opened.author == self._core.local.identity.public_key
        if not own and opened.kind not in (Kind.LEDGER_HEAD, Kind.COUNTERSIGNATURE):
            raise LocalProtocolError("a node publishes only its own envelopes, and the ledger's signed heads")
        try:
            self._awaiting.admit_own(opened) if self._running is None else self._running.admit_own(opened, now)
        except StaleWorkError:
            return  # an earlier manifest or head of ours
        if opened.kind is Kind.GROUP_HEADER:
            self._core.groups.note(opened, None)
        self._core.gossip.spread(opened, source=None)

    def order(self, order: signals.NodeOrder, now: float) -> signals.PublishRefused | None:
        """Act on an order of the role. Returns an answer for it, if any."""
        core = self._core
        match order:
            case signals.Publish(envelope=raw):
                try:
                    self.publish(raw, now)
                except (RemoteProtocolError, LocalProtocolError) as error:
                    return signals.PublishRefused(envelope_digest(raw), str(error))
            case signals.HoldGroup(digest=name, body=body):
                core.groups.hold(Digest(name), body)
            case signals.FetchGroup(digest=name):
                core.groups.fetch(Digest(name), now)
            case signals.ReleaseGroup(digest=name):
                core.groups.release(Digest(name), now)
            case signals.SetLedgerHeight(height=height):
                core.local.ledger_height = height
            case signals.AskLedger(from_height=height):
                core.ask_ledger(height)
            case signals.SendLedger(peer=peer, from_height=height, entries=entries):
                core.send_ledger(PeerId(peer), height, entries, now)
            case signals.AskFollow() | signals.SendFollow():
                core.order_follow(order)
            case _ if self._running is not None:  # before, it is ignored
                self._running.order(order, now)
        return None

    # --- state for the role ------------------------------------------------------------------------------------

    @property
    def relay_stats(self) -> RelayStats:
        """Bytes of weight chunks moved so far."""
        return self._core.relay.stats

    @property
    def download_stats(self) -> DownloadStats:
        """Download volume of the versions that completed."""
        return DownloadStats() if self._running is None else self._running.download_stats()

    @property
    def stored_names(self) -> frozenset[bytes]:
        """Roots of every blob that may be on disk, and the digest of the owner's local base."""
        return self._core.quota.names

    def roles(self) -> tuple[tuple[str, int], ...]:
        """Number of linked peers by role name. A peer that claims to be the learner without its key is a listener."""
        return self._core.roles()

    @property
    def connections(self) -> Connections:
        """The links of this node, to be read alone."""
        return self._core.connections

    def transfer_progress(self) -> tuple[int, int, int]:
        """(version, chunks held, chunks in all) of the newest version's download; version −1 when idle."""
        return (-1, 0, 0) if self._running is None else self._running.transfer_progress()

    def file_progress(self) -> tuple[int, int]:
        """(bytes held, bytes in all) of the run's files and data."""
        return (0, 0) if self._running is None else self._running.file_progress()

    # --- reports of the shell ----------------------------------------------------------------------------------

    def set_addresses(self, addresses: tuple[str, ...], now: float) -> None:
        """Set where this node can be dialed; cheap to repeat."""
        self._core.connections.discovery.set_addresses(foremost(addresses, limits.MAX_ADDRESSES), now)

    def set_upload_rate(self, bytes_s: float) -> None:
        """Set the measured uplink rate for chunks, bytes/s."""
        self._core.set_upload_rate(bytes_s)

    def allow_uploads(self, allowed: bool) -> None:
        """Set whether weights are uploaded, and strangers answered, from now on; cheap to repeat."""
        self._core.allow_uploads(allowed)

    def note_address(self, peer: PeerId, address: str) -> None:
        """A connection of `peer` comes from this multiaddr. It decides whom the peer shares links with."""
        self._core.connections.note_address(peer, address)

    def set_networks(self, networks: Iterable[Network]) -> None:
        """Set the private networks of this machine."""
        self._core.connections.discovery.set_networks(networks)

    @property
    def dial_rules(self) -> DialRules:
        """Addresses of strangers that may be dialed; the shell checks what a DNS name resolves to."""
        return self._core.connections.discovery.rules

    def link_class(self, peer: PeerId, now: float) -> LinkClass | None:
        """What this node knows of a linked peer; None for one without a link."""
        return self._core.connections.link_class(peer, now)

    def is_banned(self, peer: PeerId, now: float) -> bool:
        """Whether a peer's frames are ignored for now."""
        return self._core.connections.bans.is_banned(peer, now)

    def fault(self, peer: PeerId, reason: str, now: float) -> None:
        """A peer broke a rule of the transport."""
        if not self.is_banned(peer, now):
            self._core.punish(peer, RemoteProtocolError(reason), now)

    def connected(self, peer: PeerId, now: float, *, chosen: bool = True) -> None:
        """A dial of this node has reached `peer`, which it has not `chosen` where another peer asked for the dial."""
        self._connected(peer, now, dialed=chosen)

    def lost(self, peer: PeerId, now: float) -> None:
        """The link to `peer` failed."""
        self._core.gossip.free.connection_lost(peer)
        if self._core.connections.lost(peer, now):
            self._core.lost_peer(peer)

    def dial_failed(self, peer: PeerId, now: float) -> None:
        """A `Dial` failed."""
        self._core.connections.dial_failed(peer, now)

    def looked_up(self, records: list[bytes], now: float) -> None:
        """The directory answered a `LookUp`."""
        self._core.on_records(records, now)

    def upload_done(self, peer: PeerId, delivered: bool = True) -> None:
        """A bulk frame to `peer` has been sent, or has failed."""
        self._core.upload_done(peer, delivered)

    def receive(self, frame: bytes, source: PeerId, now: float) -> None:
        """Handle a frame from `source`. Never raises on any bytes."""
        connections = self._core.connections
        if connections.bans.is_banned(source, now):
            return
        self._connected(source, now, dialed=False)
        if source in connections.links:
            self._core.answers.received(source, len(frame))
        try:
            for message in frames.unpack(frame):
                link = connections.links.get(source)
                if link is None:
                    return
                link.heard_at = now
                try:
                    self._receive_message(message, source, now)
                except StaleWorkError:
                    continue  # nobody's fault, and no reason to lose the other messages of the frame
                except RemoteProtocolError as error:
                    self._core.punish(source, error, now)
        except RemoteProtocolError as error:
            self._core.punish(source, error, now)

    def handle_timer(self, now: float) -> None:
        """Do what is due at `now`."""
        core = self._core
        for peer in core.connections.handle_timer(now):
            core.lost_peer(peer)
        self._settle_links()
        core.relay.handle_timer(now)
        core.groups.handle_timer(now)
        if now >= self._retried_at + min(_retry_s(core, self._running, now), _QUIET_RETRY_S / 2):
            self._retried_at = now
            core.gossip.retry_wants()
            self._awaiting.retry() if self._running is None else self._running.retry(now)
            offset = core.connections.clock_offset_s(now)
            if offset is not None and not self._clock_reported:
                core.events.append(ClockOff(offset))
            self._clock_reported = offset is not None
        if self._running is not None:
            self._running.handle_timer(now)
        self._advance(now)

    def next_deadline(self) -> float:
        """When `handle_timer` is due next."""
        core = self._core
        relay = core.relay.next_deadline()
        soonest = min(core.connections.next_deadline(), core.gossip.next_deadline(), core.groups.next_deadline())
        soonest = soonest if relay is None else min(soonest, relay)
        soonest = soonest if self._running is None else min(soonest, self._running.next_deadline())
        if soonest <= self._retried_at + _RETRY_S:  # spares a look at everything that may be awaited
            return soonest
        return min(soonest, self._retried_at + _retry_s(core, self._running, self._retried_at))

    def commands(self, now: float) -> list[Command]:
        """Take the commands for the shell: frames to send, peers to dial, directory use."""
        self._advance(now)
        self._core.collect_groups()
        return self._core.take_commands(now)

    def next_event(self) -> Event | None:
        """Take the oldest event for the owner."""
        events = self._core.events
        return events.popleft() if events else None

    def _connected(self, peer: PeerId, now: float, *, dialed: bool) -> None:
        if self._core.connections.connected(peer, now, dialed=dialed):
            self._linked(peer)
            self._settle_links()

    def _settle_links(self) -> None:
        """Forget peers that have lost their links to others, and begin with those that had to wait."""
        for peer in self._core.connections.take_displaced():
            self._core.remove_peer(peer)
        for peer in self._core.connections.take_admitted():
            self._linked(peer)

    def _linked(self, peer: PeerId) -> None:
        if self._running is None:  # else its hello comes first
            self._awaiting.on_link(peer)
        self._core.pay_for_news(peer)

    def _advance(self, now: float) -> None:
        if self._running is not None:
            self._running.advance(now)

    # --- messages ----------------------------------------------------------------------------------------------

    def _receive_message(self, message: Wire, source: PeerId, now: float) -> None:
        core = self._core
        match message:
            case Hello():
                self._on_hello(message, source, now)
            case Offer():
                core.gossip.on_offer(message, source)
                core.groups.announced(message.digests, source)
            case Want():
                core.gossip.on_want(message, source, partial(core.answers.take, source, now=now))
            case Push(envelope=raw):
                if core.admits(traffic_of(raw), source, now):
                    self._on_push(raw, source, now)
            case LedgerQuery(from_height=height):
                core.on_ledger_query(source, height, now)
            case LedgerPage(from_height=height, entries=entries):
                if core.ledger.on_page(source, height, entries):
                    core.events.append(signals.LedgerArrived(height, entries))
            case _ if not any(part(core, message, source, now) for part in _PARTS):
                core.relay.receive(message, source, now)  # ignores messages that are not its own, and padding

    def _on_hello(self, message: Hello, source: PeerId, now: float) -> None:
        core = self._core
        if not wire_version.is_spoken(message.wire_version):
            core.events.append(WireMismatch(source, message.wire_version))
            if core.connections.lost(source, now):
                core.remove_peer(source)
            return
        known = core.connections.links.get(source)
        role_before = None if known is None else known.role
        link = core.connections.on_hello(message, source, now)
        if link is None or link.role is None:
            core.remove_peer(source)
            return
        if link.role is not role_before:
            core.register_role(source, link.role)
            core.report_roles()
        if self._running is not None:
            self._running.on_hello(source, link.role, message.newest_version, now)

    def _on_push(self, raw: bytes, source: PeerId, now: float) -> None:
        if self._running is None:
            self._running = self._awaiting.on_push(raw, source, now)
        else:
            self._running.on_push(raw, source, now)


def _retry_s(core: NodeCore, running: Running | None, now: float) -> float:
    is_quiet = running is not None and running.is_settled and not core.gossip.has_open_offers
    return _QUIET_RETRY_S if is_quiet and core.connections.discovery.is_settled(now) else _RETRY_S


def _is_of_meeting(core: NodeCore, message: Wire, source: PeerId, now: float) -> bool:
    """Handle a message about a meeting; False for every other message."""
    match message:
        case MeetingRequest():
            core.connections.on_meeting_request(message, source, now)
        case Meeting():
            core.connections.on_meeting(message, source, now)
        case _:
            return False
    return True


def _is_of_group(core: NodeCore, message: Wire, source: PeerId, now: float) -> bool:
    """Handle a chunk message about a part of a group; False for every other message."""
    groups, link = core.groups, core.connections.links.get(source)
    match message:
        case ChunkRequest() if link is not None and link.role is not None:
            return groups.on_request(source, place_of(message), now)
        case Chunk():
            return groups.on_part(source, message, now)
        case ChunkRefused(retry_ms=retry_ms):
            return groups.on_refused(source, place_of(message), retry_ms, now)
    return False


_PARTS = (_is_of_group, _is_of_meeting, is_of_following)
"""What handles a message that is not the node's own; the relay takes what is left."""
