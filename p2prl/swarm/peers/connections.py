"""Peer links: hellos, liveness and clock readings.

`p2prl.swarm.peers.discovery` finds peers and dials them, `p2prl.swarm.peers.bans` remembers those that broke the
rules; both are driven from here. Pure: commands go to `commands`, link messages to `outbox`.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from p2prl.errors import RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.identity import PeerId
from p2prl.protocol.kinds import Role
from p2prl.protocol.link_messages import Hello
from p2prl.protocol.wire_codec import Wire
from p2prl.swarm.events import Command
from p2prl.swarm.peers.bans import Bans
from p2prl.swarm.peers.config import ConnectionsConfig
from p2prl.swarm.peers.discovery import Discovery
from p2prl.swarm.peers.local_peer import LocalPeer
from p2prl.swarm.ports import Randomness


@dataclass(slots=True)
class PeerLink:
    """An open connection to a peer, and the contents of its last hello."""

    role: Role | None = None
    """None before its first hello."""
    heard_at: float = 0.0
    greeted_at: float = 0.0
    """When we last said hello to it."""
    clock_offset_s: float | None = None
    newest_version: int = -1
    ledger_height: int = 0


class Connections:
    """Open links by peer."""

    def __init__(self, local: LocalPeer, rng: Randomness, config: ConnectionsConfig, now: float) -> None:
        self._local = local
        self._config = config
        self.links: dict[PeerId, PeerLink] = {}
        self.bans = Bans(ban_s=config.ban_s, capacity=config.max_known)
        self.discovery = Discovery(local, self.links.keys(), self.bans, rng, config, now)
        self._next_hello = now + config.hello_s
        self._greeted_all_at = now
        """When all peers last got a hello; a change since then is announced at once."""
        self.outbox: list[tuple[PeerId, Wire]] = []

    @property
    def commands(self) -> list[Command]:
        """Directory and dial commands, for the owner to take and clear."""
        return self.discovery.commands

    def connected(self, peer: PeerId, now: float) -> bool:
        """A link is up, whichever side opened it. Returns whether it is new; a hello is sent when it is."""
        if peer in self.links or self.bans.is_banned(peer, now) or peer == self._local.identity.peer_id:
            return False
        if len(self.links) >= self._config.max_links:
            return False
        self.links[peer] = PeerLink(heard_at=now, greeted_at=now)
        self.discovery.on_link(peer, now)
        self.outbox.append((peer, self._hello(now)))
        return True

    def lost(self, peer: PeerId, now: float) -> bool:
        """The link is gone; the peer may be dialed again after a backoff. Returns whether there was a link."""
        self.discovery.on_link_lost(peer, now)
        gone = self.links.pop(peer, None) is not None
        if gone and not self._learner_linked():
            self.discovery.on_learner_missing(now)
        return gone

    def dial_failed(self, peer: PeerId, now: float) -> None:
        """A dial failed. A link that the peer opened meanwhile is kept."""
        self.discovery.on_dial_failed(peer, now)
        if peer not in self.links:
            self.lost(peer, now)

    def fault(self, peer: PeerId, now: float, *, proven: bool) -> bool:
        """A peer broke a rule; returns whether it is banned for that."""
        banned = self.bans.fault(peer, now, proven=proven)
        if banned:
            self.links.pop(peer, None)
        return banned

    def on_hello(self, message: Hello, source: PeerId, now: float) -> PeerLink | None:
        """Note a peer's hello; drops the link and returns None when it belongs to another run."""
        link = self.links.get(source)
        if link is None or message.run != self._local.run:
            self.links.pop(source, None)
            return None
        try:
            link.role = Role(message.role)
        except ValueError as error:
            raise RemoteProtocolError(f"hello: unknown role {message.role}") from error
        link.clock_offset_s = message.now_ms / 1000 - now
        link.newest_version = message.newest_version
        link.ledger_height = message.ledger_height
        if now - link.greeted_at >= self._config.answer_hello_s:
            link.greeted_at = now
            self.outbox.append((source, self._hello(now)))
        return link

    def clock_offset_s(self) -> float | None:
        """This machine's clock error by the median of its peers, when it exceeds what the wire tolerates."""
        offsets = [link.clock_offset_s for link in self.links.values() if link.clock_offset_s is not None]
        if not offsets:
            return None
        median = statistics.median(offsets)
        return median if abs(median) > limits.MAX_CLOCK_SKEW_S else None

    def handle_timer(self, now: float) -> list[PeerId]:
        """Refresh, greet and dial as due; returns the peers dropped for silence."""
        if now >= self.discovery.next_refresh:
            self.refresh(now)
        if now >= self._next_hello or self._local.changed:
            self._local.changed = False
            self._greeted_all_at = now
            self._next_hello = now + self._config.hello_s
            hello = self._hello(now)
            self.outbox.extend((peer, hello) for peer in self.links)
            for link in self.links.values():
                link.greeted_at = now
        silent = [peer for peer, link in self.links.items() if now - link.heard_at > self._config.silence_s]
        for peer in silent:
            self.lost(peer, now)
        self.discovery.dial(now)
        return silent

    def refresh(self, now: float) -> None:
        """Publish our record and look up other peers, now."""
        self.discovery.refresh(now, learner_linked=self._learner_linked())

    def next_deadline(self) -> float:
        """When `handle_timer` is due."""
        due = min(self.discovery.next_refresh, self._next_hello)
        return min(due, self._greeted_all_at) if self._local.changed else due

    def _learner_linked(self) -> bool:
        link = None if self._local.learner is None else self.links.get(self._local.learner)
        return link is not None and link.role is Role.LEARNER

    def _hello(self, now: float) -> Hello:
        return Hello(
            wire_version=limits.WIRE_VERSION,
            run=self._local.run,
            role=int(self._local.role),
            now_ms=int(now * 1000),
            newest_version=self._local.newest_version,
            ledger_height=self._local.ledger_height,
        )
