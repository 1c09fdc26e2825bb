"""Peer links: hellos, liveness and clock readings.

`p2prl.swarm.peers.discovery` finds peers and dials them, `p2prl.swarm.peers.bans` remembers those that broke the
rules, `p2prl.swarm.peers.link_admission` shares the places when there are too few; all are driven from here. Pure:
commands go to `commands`, link messages to `outbox`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from p2prl.errors import RemoteProtocolError
from p2prl.protocol import limits, wire_version
from p2prl.protocol.identity import PUBLIC_KEY_BYTES, PeerId, peer_id_of
from p2prl.protocol.kinds import Role
from p2prl.protocol.link_messages import Hello, Meeting, MeetingRequest
from p2prl.protocol.standing import StandingTable
from p2prl.protocol.wire_codec import Wire
from p2prl.swarm.events import Command, Meet
from p2prl.swarm.peers.bans import Bans
from p2prl.swarm.peers.clock_estimate import PeerClock, Vote, clock_error_s
from p2prl.swarm.peers.connections_config import ANSWER_HELLO_S, ConnectionsConfig
from p2prl.swarm.peers.discovery import Discovery
from p2prl.swarm.peers.join_link_peers import SHOW_LINKS
from p2prl.swarm.peers.link_admission import Claim, LinkAdmission, LinkClass
from p2prl.swarm.peers.local_peer import LocalPeer
from p2prl.swarm.peers.meetings import Meetings, hosts_among, is_direct_public
from p2prl.swarm.peers.peer_memory import LinkedRecord
from p2prl.swarm.peers.reachability import LinkCounts
from p2prl.swarm.peers.subnets import UNKNOWN, PeerSubnets, Subnet, is_relayed
from p2prl.swarm.ports import Randomness

GREETINGS = 32
"""Hellos sent at once. A thousand in one turn, each on a stream to be opened or written, keep the transport from
everything else, and the last ones miss the deadline of their frame."""

GREETING_PAUSE_S = 0.05
"""Until the next ones: a thousand neighbors are greeted within two seconds."""


_GREETED_EARLY_S = 3.0
"""Hellos due so soon are sent with one that is due: a node with thirty links wakes a few times in a period, not thirty
times."""


@dataclass(slots=True)
class PeerLink:
    """An open connection to a peer, and the contents of its last hello."""

    role: Role | None = None
    """None before its first hello."""
    heard_at: float = 0.0
    greeted_at: float = 0.0
    """When we last said hello to it."""
    clock: PeerClock = field(default_factory=PeerClock)
    newest_version: int = -1
    ledger_height: int = 0
    subnet: Subnet = UNKNOWN
    since: float = 0.0
    useful_at: float = -math.inf
    """When it last brought something new and valid."""
    has_echoed: bool = False
    """Whether a hello was answered at once because the clocks seemed far apart; once for each link."""
    is_chosen: bool = False
    """Whether this node dialed it."""
    is_outdated: bool = False
    """Whether something that a hello says has changed since we greeted it."""


class Connections:
    """Open links by peer. It asks every rule for links, because the rules know nothing of each other."""

    def __init__(self, local: LocalPeer, rng: Randomness, config: ConnectionsConfig, now: float) -> None:
        self._local = local
        self._config = config
        self.links: dict[PeerId, PeerLink] = {}
        self.bans = Bans(capacity=config.max_known)
        self.discovery = Discovery(local, self.links.keys(), self.bans, rng, config, now)
        self._next_hello = now + config.hello_s
        self.outbox: list[tuple[PeerId, Wire]] = []
        self.subnets = PeerSubnets(config.max_known)
        self.standings = StandingTable(config.max_known, peer_id_of)
        self._meetings = Meetings(local.identity.peer_id, capacity=config.max_known)
        self._admission = LinkAdmission(rng, config.max_links)
        self._displaced: list[PeerId] = []
        self._clock_heard = False
        """Whether a hello came since the clock was estimated."""
        self._clock_error_s: float | None = None
        self._admitted: list[PeerId] = []

    @property
    def learner(self) -> PeerId | None:
        """The peer whose key signed the run manifest; None while that is unknown."""
        return self._local.learner

    @property
    def commands(self) -> list[Command]:
        """Directory and dial commands, for the owner to take and clear."""
        return self.discovery.commands

    def connected(self, peer: PeerId, now: float, *, dialed: bool = False) -> bool:
        """A connection is up; `dialed` says that this node opened it. Returns whether that is a new link.

        In a full table it may take the place of another link (`take_displaced`), or has to wait (`take_admitted`).
        """
        if peer in self.links:
            if dialed:
                self.links[peer].is_chosen = True
                self.discovery.on_link(peer, now, dialed=True)
            return False
        if self.bans.is_banned(peer, now) or peer == self._local.identity.peer_id:
            return False
        linked, displaced = True, None
        if len(self.links) >= self._config.max_links:
            claim = Claim(self._class_of(peer, None, now, dialed=dialed), self.subnets.of(peer), now)
            linked, displaced = self._admission.ask(peer, claim, lambda: self._claims(now), now)
        if displaced is not None:
            self._displace(displaced, now)
        if linked:
            self._link(peer, now, dialed=dialed)
        return linked

    def note_address(self, peer: PeerId, address: str) -> None:
        """A connection of a peer comes from this multiaddr."""
        self.subnets.note(peer, address)
        self._meetings.note(peer, address)

    def on_meeting_request(self, message: MeetingRequest, source: PeerId, now: float) -> None:
        """Invite two peers that are linked here to meet."""
        self.outbox.extend(self._meetings.on_request(message, source, self.links, now))

    def on_meeting(self, message: Meeting, source: PeerId, now: float) -> None:
        """Meet a peer at the address that a neighbor has seen, unless it has a direct link already."""
        if len(message.peer) != PUBLIC_KEY_BYTES:
            raise RemoteProtocolError("meeting: no public key")
        peer, by_learner = peer_id_of(message.peer), source == self._local.learner
        has_link = peer in self.links and not self.is_relayed(peer)
        if has_link or not is_direct_public(message.address):
            return
        is_new = self._meetings.is_new(peer, now, by_learner=by_learner)
        if is_new and self.discovery.may_dial(peer, message.address, now, by_learner=by_learner):
            self.commands.append(Meet(peer, message.address, message.dials))

    def linked_records(self) -> list[LinkedRecord]:
        """Signed records of the linked peers that have said hello, as far as the directory has named them."""
        return [
            LinkedRecord(
                peer=peer,
                raw=self.discovery.record_of(peer),
                role=link.role,
                addresses=self.discovery.addresses_of(peer),
                observed=self.subnets.of(peer),
                is_chosen=link.is_chosen,
                since=link.since,
                is_listed=self.discovery.is_listed(peer, link.clock.began_ms),
            )
            for peer, link in self.links.items()
            if link.role is not None and self.discovery.record_of(peer)
        ]

    def is_relayed(self, peer: PeerId) -> bool:
        """Whether the newest connection with a peer passes a circuit."""
        return is_relayed(self.subnets.of(peer))

    def is_public(self, peer: PeerId) -> bool:
        """Whether a peer's record names the very address that its packets come from: no router chose that port.

        A peer behind a router that keeps ports can claim as much. What follows from it has to be earned (`leaders`).
        """
        return not self.is_relayed(peer) and self._meetings.has_seen(peer, self.discovery.addresses_of(peer))

    def link_counts(self) -> LinkCounts:
        """The links after their first hello, by how they came about."""
        greeted = [peer for peer, link in self.links.items() if link.role is not None]
        relayed = sum(map(self.is_relayed, greeted))
        direct = [peer for peer in greeted if not self.is_relayed(peer) and self._meetings.is_seen(peer)]
        return LinkCounts(len(greeted), relayed + len(direct), sum(map(self.discovery.is_behind_router, direct)))

    def take_displaced(self) -> list[PeerId]:
        """Peers that have lost their links to others since the last call."""
        displaced, self._displaced = self._displaced, []
        return displaced

    def take_admitted(self) -> list[PeerId]:
        """Peers that waited and have links since the last call."""
        admitted, self._admitted = self._admitted, []
        return admitted

    def was_useful(self, peer: PeerId, now: float) -> None:
        """A peer has brought something new and valid: its link is among the last to go."""
        link = self.links.get(peer)
        if link is not None:
            link.useful_at = now

    def is_known(self, peer: PeerId, now: float) -> bool:
        """Whether a peer is no newcomer: the learner, one this node chose, or one of standing."""
        return self._class_of(peer, self.links.get(peer), now) >= LinkClass.KNOWN

    def link_class(self, peer: PeerId, now: float) -> LinkClass | None:
        """What is known of a linked peer; None for one without a link."""
        link = self.links.get(peer)
        return None if link is None else self._class_of(peer, link, now)

    def lost(self, peer: PeerId, now: float) -> bool:
        """The link is gone; the peer may be dialed again after a backoff. Returns whether there was a link."""
        self.discovery.on_link_lost(peer, now)
        gone = self.links.pop(peer, None) is not None
        if gone and not self._learner_linked():
            self.discovery.on_learner_missing(now)
        return gone

    def dial_failed(self, peer: PeerId, now: float) -> None:
        """A dial failed. A link that the peer opened meanwhile is kept."""
        self.discovery.on_dial_failed(peer)
        if peer not in self.links:
            self.lost(peer, now)

    def fault(self, peer: PeerId, now: float, *, proven: bool) -> bool:
        """A peer broke a rule; returns whether it is banned for that."""
        banned = self.bans.fault(peer, now, proven=proven)
        if banned:
            self.links.pop(peer, None)
            self._admission.forget(peer)
        return banned

    def on_hello(self, message: Hello, source: PeerId, now: float) -> PeerLink | None:
        """Note a peer's hello; drops the link and returns None when it belongs to another run."""
        link = self.links.get(source)
        if link is None or message.run != self._local.run:
            self.discovery.on_hello(source, message.run)
            self.links.pop(source, None)
            return None
        try:
            link.role = Role(message.role)
        except ValueError as error:
            raise RemoteProtocolError(f"hello: unknown role {message.role}") from error
        link.clock.heard(message.now_ms, message.echo_ms, message.held_ms, now)
        self._clock_heard = True
        link.newest_version = message.newest_version
        link.ledger_height = message.ledger_height
        # Two clocks far apart, or a slow delivery: an echo at once tells the other side which.
        is_odd = abs(message.now_ms / 1000 - now) > limits.MAX_CLOCK_SKEW_S / 2 and not link.has_echoed
        link.has_echoed |= is_odd
        if is_odd or now - link.greeted_at >= ANSWER_HELLO_S:
            self._greet(source, link, now)
        return link

    def clock_offset_s(self, now: float) -> float | None:
        """The peers' clock minus ours, when a quorum of them shows that it exceeds what the wire tolerates."""
        if not self._clock_heard:
            return self._clock_error_s
        self._clock_heard = False
        votes = (
            Vote(link.clock.reading, link.subnet, self.standings.is_known(peer, now), peer == self._local.learner)
            for peer, link in self.links.items()
            if link.clock.reading is not None
        )
        self._clock_error_s = clock_error_s(votes, tolerance_s=limits.MAX_CLOCK_SKEW_S)
        return self._clock_error_s

    def handle_timer(self, now: float) -> list[PeerId]:
        """Refresh, greet and dial as due; returns the peers dropped for silence."""
        if now >= self.discovery.next_refresh:
            self.refresh(now)
        self._greet_due(now)
        silent = [peer for peer, link in self.links.items() if now - link.heard_at > self._config.silence_s]
        for peer in silent:
            self.lost(peer, now)
        if now >= self._admission.next_deadline():
            self._admit_waiting(now)
        self.discovery.dial(now)
        if self._meetings.is_due(now):
            self.outbox.extend(self._meetings.take_requests(self._unmet(now), self._hosts, now))
        return silent

    def refresh(self, now: float) -> None:
        """Publish our record and look up other peers, now."""
        shown = self.linked_records() if self._local.role in SHOW_LINKS else []
        awaited = [each.peer for each in shown if each.is_listed is None]
        self.discovery.refresh(now, learner_linked=self._learner_linked(), awaited=awaited)

    def next_deadline(self) -> float:
        """When `handle_timer` is due."""
        parts = (self._admission, self._meetings)
        due = min(self.discovery.next_refresh, self._next_hello, *(part.next_deadline() for part in parts))
        return -math.inf if self._local.changed else due

    def _unmet(self, now: float) -> list[PeerId]:
        """Peers behind routers that this node should have a direct link with, and has not."""
        return [peer for peer in self.discovery.unreached(now) if peer not in self.links or self.is_relayed(peer)]

    def _hosts(self) -> list[PeerId]:
        direct = {peer: link.role for peer, link in self.links.items() if not self.is_relayed(peer)}
        return hosts_among(direct, self.is_public, self._local.learner)

    def _learner_linked(self) -> bool:
        link = None if self._local.learner is None else self.links.get(self._local.learner)
        return link is not None and link.role is Role.LEARNER

    def _link(self, peer: PeerId, now: float, *, dialed: bool) -> None:
        link = PeerLink(heard_at=now, subnet=self.subnets.of(peer), since=now, is_chosen=dialed)
        self.links[peer] = link
        self.discovery.on_link(peer, now, dialed=dialed)
        self._greet(peer, link, now)

    def _displace(self, peer: PeerId, now: float) -> None:
        self.lost(peer, now)
        self._displaced.append(peer)

    def _admit_waiting(self, now: float) -> None:
        for peer, displaced in self._admission.take_turn(self._claims(now), now):
            if displaced is not None:
                self._displace(displaced, now)
            if peer not in self.links:
                self._link(peer, now, dialed=False)
                self._admitted.append(peer)

    def _claims(self, now: float) -> dict[PeerId, Claim]:
        return {
            peer: Claim(self._class_of(peer, link, now), link.subnet, link.since, link.useful_at)
            for peer, link in self.links.items()
        }

    def _class_of(self, peer: PeerId, link: PeerLink | None, now: float, *, dialed: bool = False) -> LinkClass:
        if peer == self._local.learner:
            return LinkClass.LEARNER
        if dialed or peer in self.discovery.introduced or (link is not None and link.is_chosen):
            return LinkClass.CHOSEN
        if self.standings.is_known(peer, now):
            return LinkClass.KNOWN
        is_validator = link is not None and link.role is Role.VALIDATOR
        return LinkClass.VALIDATOR if is_validator else LinkClass.NEWCOMER

    def _greet_due(self, now: float) -> None:
        """Greet the peers whose hello is due, the longest waiting first, and the rest a moment later."""
        if self._local.changed:
            self._local.changed = False
            for link in self.links.values():
                link.is_outdated = True
        elif now < self._next_hello:
            return
        old = now - self._config.hello_s + min(_GREETED_EARLY_S, self._config.hello_s / 4)
        due = [
            (link.greeted_at, peer) for peer, link in self.links.items() if link.is_outdated or link.greeted_at <= old
        ]
        for _, peer in sorted(due)[:GREETINGS]:
            self._greet(peer, self.links[peer], now)
        if len(due) > GREETINGS:
            self._next_hello = now + GREETING_PAUSE_S
        else:
            first = min((link.greeted_at for link in self.links.values()), default=now)
            self._next_hello = first + self._config.hello_s

    def _greet(self, peer: PeerId, link: PeerLink, now: float) -> None:
        link.greeted_at, link.is_outdated = now, False
        echo_ms, held_ms = link.clock.sent(now)
        self.outbox.append((peer, self._hello(now, echo_ms, held_ms)))

    def _hello(self, now: float, echo_ms: int, held_ms: int) -> Hello:
        return Hello(
            wire_version=wire_version.WIRE_VERSION,
            run=self._local.run,
            role=int(self._local.role),
            now_ms=int(now * 1000),
            newest_version=self._local.newest_version,
            ledger_height=self._local.ledger_height,
            echo_ms=echo_ms,
            held_ms=held_ms,
        )
