"""Peer discovery: the directory's address book, and which peers to dial.

The directory is only an address book. A node refreshes its own signed record, looks the others up, and dials the
learner, the neighbors the learner introduces, and others at random up to `max_neighbors` links.

Pure: directory and dial commands go to `commands`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from p2prl.clock import backoff_s
from p2prl.errors import RemoteProtocolError, StaleWorkError
from p2prl.protocol import limits
from p2prl.protocol.envelope import body_of, open_envelope, seal
from p2prl.protocol.identity import PeerId, peer_id_of
from p2prl.protocol.kinds import Role
from p2prl.protocol.peer_messages import Introduction, PeerRecord
from p2prl.swarm.events import Command, Dial, LookUp, Register
from p2prl.swarm.peers.bans import Bans
from p2prl.swarm.peers.config import ConnectionsConfig
from p2prl.swarm.peers.local_peer import LocalPeer
from p2prl.swarm.ports import Randomness

_KEY_CHECK_S = 180.0
"""For this long a node looks records up however many links it has: one of its own key would tell that another machine
uses the key (`p2prl.net.process.key_use`), and that one writes its record every 30 s."""


@dataclass(slots=True)
class _KnownPeer:
    """An entry of the address book."""

    addresses: tuple[str, ...]
    signed_ms: int
    """When the peer signed the record: an older record must not replace a newer one."""
    attempts: int = 0
    dial_after: float = 0.0
    dialing_until: float = 0.0
    """A dial is under way and counts as a link until then."""


class Discovery:
    """Address book and dialing."""

    def __init__(
        self,
        local: LocalPeer,
        links: Collection[PeerId],
        bans: Bans,
        rng: Randomness,
        config: ConnectionsConfig,
        now: float,
    ) -> None:
        """`links` is a live view of the linked peers."""
        self._local = local
        self._links = links
        self._bans = bans
        self._rng = rng
        self._config = config
        self._known: dict[PeerId, _KnownPeer] = {}
        self.introduced: frozenset[PeerId] = frozenset()
        """Peers the learner introduced last."""
        self._introduced_ms = 0
        """When the learner signed that introduction."""
        self._introduction_wait_from = now
        """When the wait for an introduction began: at the start, or with the link to the learner."""
        self.next_refresh = now
        self.commands: list[Command] = []

    def set_addresses(self, addresses: tuple[str, ...], now: float) -> None:
        """Set our addresses; a change is published in the directory soon."""
        if addresses != self._local.addresses:
            self._local.addresses = addresses
            self.next_refresh = now

    def addresses_of(self, peer: PeerId) -> tuple[str, ...]:
        """Addresses of a peer according to the directory."""
        entry = self._known.get(peer)
        return () if entry is None else entry.addresses

    def on_link(self, peer: PeerId, now: float) -> None:
        """A link to a peer is up."""
        if peer == self._local.learner:
            self._introduction_wait_from = now
        if peer in self._known:
            self._known[peer].attempts = 0

    def on_link_lost(self, peer: PeerId, now: float) -> None:
        """A link or dial failed: dial the peer again only after a backoff."""
        entry = self._known.get(peer)
        if entry is not None:
            entry.attempts += 1
            entry.dial_after = max(
                entry.dial_after, now + backoff_s(entry.attempts, base_s=1.0, cap_s=60.0, rng=self._rng)
            )

    def on_learner_missing(self, now: float) -> None:
        """No learner is linked: look up peers soon."""
        self.next_refresh = min(self.next_refresh, now + self._config.eager_refresh_s)

    def on_dial_failed(self, peer: PeerId, now: float) -> None:
        """A dial is no longer under way."""
        if peer in self._known:
            self._known[peer].dialing_until = now

    def on_introduction(self, message: Introduction, sent_ms: int, now: float) -> None:
        """Dial the peers the learner introduced. Raises `StaleWorkError` when the message is older than the last."""
        if message.peer != self._local.identity.public_key:
            raise RemoteProtocolError("introduction meant for another peer")
        if sent_ms <= self._introduced_ms:
            raise StaleWorkError("introduction older than the last")
        self._introduced_ms = sent_ms
        self.introduced = frozenset(map(peer_id_of, message.neighbors)) - {self._local.identity.peer_id}
        if self._lacks_addresses():
            self.commands.append(LookUp())
        self.dial(now)

    def on_records(self, records: list[bytes], now: float) -> None:
        """Take in peer records from the directory, skipping unusable ones: anybody can write to the directory."""
        for raw in records:
            try:
                opened = open_envelope(raw, now=now)
                record = body_of(opened, PeerRecord)
                record.check()
                Role(record.role)
            except (RemoteProtocolError, StaleWorkError, ValueError):
                continue
            peer = peer_id_of(opened.author)
            stale = now - opened.sent_ms / 1000 > limits.PEER_RECORD_TTL_S
            if opened.run != self._local.run or stale or peer == self._local.identity.peer_id:
                continue
            entry = self._known.get(peer)
            if entry is None:
                self._known[peer] = _KnownPeer(record.addresses, opened.sent_ms)
            elif opened.sent_ms > entry.signed_ms:
                entry.addresses, entry.signed_ms = record.addresses, opened.sent_ms
        self._forget_old(now)
        self.dial(now)

    def refresh(self, now: float, *, learner_linked: bool) -> None:
        """Publish our record, and look up other peers while links or addresses are missing."""
        is_connected = learner_linked or self._local.role is Role.LEARNER
        self.next_refresh = now + (self._config.refresh_s if is_connected else self._config.eager_refresh_s)
        local = self._local
        record = PeerRecord(int(local.role), local.addresses, local.newest_version, local.started_ms)
        raw = seal(self._local.identity, record, run=self._local.run, now=now)
        self.commands.append(Register(raw, now + limits.PEER_RECORD_TTL_S))
        is_fresh = now < self._local.started_ms / 1000 + _KEY_CHECK_S
        if is_fresh or not is_connected or len(self._links) < self._config.max_neighbors or self._lacks_addresses():
            self.commands.append(LookUp())

    def dial(self, now: float) -> None:
        """Dial known peers while there is room for links."""
        dialing = sum(entry.dialing_until > now and peer not in self._links for peer, entry in self._known.items())
        used = len(self._links) + dialing
        candidates = [
            (peer, entry)
            for peer, entry in self._known.items()
            if peer not in self._links
            and entry.dial_after <= now
            and entry.addresses
            and not self._bans.is_banned(peer, now)
        ]
        # The learner first, then introduced peers, then random ones: random links keep a swarm connected.
        candidates.sort(key=lambda p: (p[0] != self._local.learner, p[0] not in self.introduced, self._rng.random()))
        # An introduced peer is dialed beyond the present links: those were drawn without knowing the swarm.
        introduced = sum(peer in self.introduced for peer, _ in candidates)
        room = max(self._random_link_target(now) - used, min(introduced, self._config.max_with_introduced - used))
        for peer, entry in candidates[: max(0, room)]:
            entry.attempts += 1
            entry.dialing_until = now + self._config.dial_s
            entry.dial_after = now + 1.0 + backoff_s(entry.attempts, base_s=2.0, cap_s=60.0, rng=self._rng)
            self.commands.append(Dial(peer, entry.addresses))

    def _lacks_addresses(self) -> bool:
        """Whether an introduced peer is neither linked nor in the address book."""
        return any(peer not in self._known and peer not in self._links for peer in self.introduced)

    def _random_link_target(self, now: float) -> int:
        """Links to dial up to at random; fewer while an introduction is awaited."""
        most = self._config.max_neighbors
        waiting = not self._introduced_ms and now < self._introduction_wait_from + self._config.introduction_wait_s
        return min(self._config.random_links, most) if waiting else most

    def _forget_old(self, now: float) -> None:
        """Drop expired records, and the oldest ones past the limit."""
        oldest_ms = (now - self._config.forget_s) * 1000
        fresh = {peer: entry for peer, entry in self._known.items() if entry.signed_ms > oldest_ms}
        if len(fresh) > self._config.max_known:
            # Anybody can sign a record with the present date, so dates decide among strangers only.
            needed = {*self.introduced, *self._links, self._local.learner}
            order = sorted(fresh, key=lambda peer: (peer not in needed, -fresh[peer].signed_ms))
            fresh = {peer: fresh[peer] for peer in order[: self._config.max_known]}
        self._known = fresh
