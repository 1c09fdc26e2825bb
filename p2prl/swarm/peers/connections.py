"""Whom a node is linked with: directory records, dialling, hellos, liveness, clocks and bans.

The directory is only an address book. A node refreshes its own signed record, looks the others up, dials the learner,
the neighbours the learner names, and others at random up to `max_neighbours` links. A neighbour that breaks the wire's
rules is dropped and not dialled again for a while. Pure: commands go to `commands`, link messages to `outbox`.
"""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field

from p2prl.clock import backoff_s
from p2prl.errors import RemoteProtocolError, StaleWorkError
from p2prl.protocol import limits
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import body_of, open_envelope, seal
from p2prl.protocol.identity import Identity, PeerId, peer_id_of
from p2prl.protocol.kinds import Role
from p2prl.protocol.link_messages import Hello
from p2prl.protocol.peer_messages import Introduction, PeerRecord
from p2prl.protocol.wire_codec import Wire
from p2prl.swarm.events import Command, Dial, LookUp, Register
from p2prl.swarm.ports import Randomness

_FORGIVEN_FAULTS = 3
"""Malformed messages a neighbour may send before it is banned: one may be an old build's, three are not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectionsConfig:
    """Dials of the neighbourhood."""

    max_neighbours: int = 16
    """Links a node dials up to. With those that others open it has about 24, and that many random neighbours keep a
    swarm of thousands connected when a third of it dies."""
    strangers: int = 6
    """Links a node fills at random before the learner has named any. They stay beside the named ones: a learner that is
    captured, or wrong, cannot choose all of anybody's neighbours."""
    max_with_named: int = 64
    """Links up to which the named are dialled. A learner that starts again names others, and no link is given up."""
    introduction_s: float = 15.0
    """How long a node leaves the rest of its links for those the learner will name: from its start, and from its link
    with the learner."""
    max_links: int = 1_024
    """Links in all, with those that others opened: what one learner can greet, and a flood of keys cannot exceed."""
    max_known: int = 4_096
    """Peers in the address book. The directory is anybody's to write to."""
    forget_s: float = 900.0
    """A peer whose directory record is older than this is forgotten and no longer dialled."""
    refresh_s: float = 30.0
    """Own directory record and lookup period once the node has neighbours."""
    eager_refresh_s: float = 3.0
    """Lookup period while the node has no neighbour or lacks a learner."""
    hello_s: float = 15.0
    """A hello is repeated this often, as a sign of life and a clock reading."""
    dial_s: float = 15.0
    """How long a dial may be under way."""
    answer_hello_s: float = 2.0
    """A hello is answered unless we greeted within this time: the other end may have lost the link and we not."""
    silence_s: float = 35.0
    """A neighbour silent for longer is dropped."""
    ban_s: float = 600.0
    """How long a peer that broke the rules is neither heard nor dialled."""


@dataclass(slots=True)
class Neighbour:
    """A live link."""

    role: Role | None = None
    heard_at: float = 0.0
    greeted_at: float = 0.0
    """When we last said hello to it."""
    clock_offset_s: float | None = None
    newest_version: int = -1
    ledger_height: int = 0


@dataclass(slots=True)
class _Known:
    addresses: tuple[str, ...]
    role: Role
    dated_ms: int
    """When the peer signed the record this came from: an older record must not replace a newer."""
    attempts: int = 0
    dial_after: float = 0.0
    dialling_until: float = 0.0
    """A dial is under way and counts as a link until then."""


@dataclass(slots=True)
class LocalPeer:
    """What this node says about itself; the owner keeps it current."""

    identity: Identity
    role: Role
    run: Digest
    addresses: tuple[str, ...] = ()
    newest_version: int = -1
    ledger_height: int = 0
    learner: PeerId | None = None
    """Whose key signs the run, once the manifest is here. Whoever else calls itself a learner is none."""
    changed: bool = field(default=False)
    """Set by the owner when a hello should go out before its time."""


class Connections:
    """Keeps the node linked."""

    def __init__(self, me: LocalPeer, rng: Randomness, config: ConnectionsConfig, now: float) -> None:
        self.me = me
        self._rng = rng
        self._config = config
        self.links: dict[PeerId, Neighbour] = {}
        self._known: dict[PeerId, _Known] = {}
        self._banned: dict[PeerId, float] = {}
        self._faults: Counter[PeerId] = Counter()
        self._introduced: frozenset[PeerId] = frozenset()
        self._introduced_ms = 0
        """When the learner signed that."""
        self._hoping_since = now
        """Since when the learner may be about to name some: since we came, or it did."""
        self._next_refresh = now
        self._next_hello = now + config.hello_s
        self._changed_at = now
        """When something was last said of ourselves; a change since then is told at once."""
        self.outbox: list[tuple[PeerId, Wire]] = []
        self.commands: list[Command] = []

    def connected(self, peer: PeerId, now: float) -> bool:
        """A link is up, by whichever side's doing. Returns whether it is new; a hello goes out when it is."""
        if peer in self.links or self.is_banned(peer, now) or peer == self.me.identity.peer_id:
            return False
        if len(self.links) >= self._config.max_links:
            return False
        self.links[peer] = Neighbour(heard_at=now, greeted_at=now)
        if peer == self.me.learner:
            self._hoping_since = now
        if peer in self._known:
            self._known[peer].attempts = 0
        self.outbox.append((peer, self._hello(now)))
        return True

    def lost(self, peer: PeerId, now: float) -> bool:
        """The link is gone; the peer may be dialled again after a backoff. Returns whether there was a link."""
        known = self._known.get(peer)
        if known is not None:
            known.attempts += 1
            known.dial_after = max(
                known.dial_after, now + backoff_s(known.attempts, base_s=1.0, cap_s=60.0, rng=self._rng)
            )
        gone = self.links.pop(peer, None) is not None
        if gone and not self._has_learner():
            self._next_refresh = min(self._next_refresh, now + self._config.eager_refresh_s)
        return gone

    def dial_failed(self, peer: PeerId, now: float) -> None:
        """A dial came to nothing. A link that the peer opened meanwhile stands."""
        if peer in self._known:
            self._known[peer].dialling_until = now
        if peer not in self.links:
            self.lost(peer, now)

    def readdress(self, addresses: tuple[str, ...], now: float) -> None:
        """Our addresses changed: tell the directory soon."""
        if addresses != self.me.addresses:
            self.me.addresses = addresses
            self._next_refresh = now

    def ban(self, peer: PeerId, now: float) -> None:
        """Hear nothing more from a peer for a while."""
        self._banned.pop(peer, None)
        self._banned[peer] = now + self._config.ban_s
        if len(self._banned) > self._config.max_known:
            del self._banned[next(iter(self._banned))]  # the first to end
        self.links.pop(peer, None)

    def fault(self, peer: PeerId, now: float, *, proven: bool) -> bool:
        """A neighbour broke a rule. Bans it, and returns True, when that is `proven` malice or happened too often."""
        self._faults[peer] += 1
        if len(self._faults) > self._config.max_known:
            del self._faults[next(iter(self._faults))]
        if self._faults[peer] < _FORGIVEN_FAULTS and not proven:
            return False
        del self._faults[peer]
        self.ban(peer, now)
        return True

    def is_banned(self, peer: PeerId, now: float) -> bool:
        """Whether a peer's frames are to be ignored."""
        return self._banned.get(peer, 0.0) > now

    def on_hello(self, message: Hello, source: PeerId, now: float) -> Neighbour | None:
        """A neighbour introduced itself; None when it belongs to another run."""
        link = self.links.get(source)
        if link is None or message.run != self.me.run:
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

    def on_introduction(self, message: Introduction, sent_ms: int, now: float) -> None:
        """The learner named neighbours. An older word of its than the last is `StaleWorkError`."""
        if message.peer != self.me.identity.public_key:
            raise RemoteProtocolError("introduction meant for another peer")
        if sent_ms <= self._introduced_ms:
            raise StaleWorkError("introduction older than the last")
        self._introduced_ms = sent_ms
        self._introduced = frozenset(map(peer_id_of, message.neighbors)) - {self.me.identity.peer_id}
        if self._lacks_addresses():
            self.commands.append(LookUp())
        self._dial(now)

    def addresses_of(self, peer: PeerId) -> tuple[str, ...]:
        """Where the directory says a peer can be dialled."""
        known = self._known.get(peer)
        return () if known is None else known.addresses

    def clock_offset_s(self) -> float | None:
        """This machine's clock error by the median of its neighbours, when it exceeds what the wire tolerates."""
        offsets = [n.clock_offset_s for n in self.links.values() if n.clock_offset_s is not None]
        if not offsets:
            return None
        median = statistics.median(offsets)
        return median if abs(median) > limits.MAX_CLOCK_SKEW_S else None

    def on_records(self, records: list[bytes], now: float) -> None:
        """Peer records from the directory; unusable ones are skipped: the directory is anybody's to write to."""
        for raw in records:
            try:
                opened = open_envelope(raw, now=now)
                record = body_of(opened, PeerRecord)
                record.check()
                role = Role(record.role)
            except (RemoteProtocolError, StaleWorkError, ValueError):
                continue
            peer = peer_id_of(opened.author)
            stale = now - opened.sent_ms / 1000 > limits.PEER_RECORD_TTL_S
            if opened.run != self.me.run or stale or peer == self.me.identity.peer_id:
                continue
            known = self._known.get(peer)
            if known is None:
                self._known[peer] = _Known(record.addresses, role, opened.sent_ms)
            elif opened.sent_ms > known.dated_ms:
                known.addresses, known.role, known.dated_ms = record.addresses, role, opened.sent_ms
        self._forget_old(now)
        self._dial(now)

    def handle_timer(self, now: float) -> list[PeerId]:
        """Refresh, greet and dial as due; returns neighbours dropped for silence."""
        if now >= self._next_refresh:
            self.refresh(now)
        if now >= self._next_hello or self.me.changed:
            self.me.changed = False
            self._changed_at = now
            self._next_hello = now + self._config.hello_s
            hello = self._hello(now)
            self.outbox.extend((peer, hello) for peer in self.links)
            for link in self.links.values():
                link.greeted_at = now
        silent = [p for p, n in self.links.items() if now - n.heard_at > self._config.silence_s]
        for peer in silent:
            self.lost(peer, now)
        self._dial(now)
        return silent

    def refresh(self, now: float) -> None:
        """Publish our record and look the others up, now."""
        content = self._has_learner() or self.me.role is Role.LEARNER
        self._next_refresh = now + (self._config.refresh_s if content else self._config.eager_refresh_s)
        record = PeerRecord(int(self.me.role), self.me.addresses, self.me.newest_version)
        raw = seal(self.me.identity, record, run=self.me.run, now=now)
        self.commands.append(Register(raw, now + limits.PEER_RECORD_TTL_S))
        if not content or len(self.links) < self._config.max_neighbours or self._lacks_addresses():
            self.commands.append(LookUp())

    def next_deadline(self) -> float:
        """When `handle_timer` wants to run."""
        soon = min(self._next_refresh, self._next_hello)
        return min(soon, self._changed_at) if self.me.changed else soon

    def _has_learner(self) -> bool:
        link = None if self.me.learner is None else self.links.get(self.me.learner)
        return link is not None and link.role is Role.LEARNER

    def _dial(self, now: float) -> None:
        pending = sum(known.dialling_until > now and peer not in self.links for peer, known in self._known.items())
        taken = len(self.links) + pending
        waiting = [
            (peer, known)
            for peer, known in self._known.items()
            if peer not in self.links and known.dial_after <= now and known.addresses and not self.is_banned(peer, now)
        ]
        # The learner first, then whom it names, then at random: random neighbours keep a swarm in one piece.
        waiting.sort(key=lambda p: (p[0] != self.me.learner, p[0] not in self._introduced, self._rng.random()))
        # A named neighbour is dialled beyond the links there are: those were drawn without knowing the swarm.
        named = sum(peer in self._introduced for peer, _ in waiting)
        room = max(self._wanted_links(now) - taken, min(named, self._config.max_with_named - taken))
        for peer, known in waiting[: max(0, room)]:
            known.attempts += 1
            known.dialling_until = now + self._config.dial_s
            known.dial_after = now + 1.0 + backoff_s(known.attempts, base_s=2.0, cap_s=60.0, rng=self._rng)
            self.commands.append(Dial(peer, known.addresses))

    def _lacks_addresses(self) -> bool:
        """Whether somebody the learner named is not in the address book."""
        return not self._introduced <= self._known.keys() | self.links.keys()

    def _wanted_links(self, now: float) -> int:
        """Links to dial up to at random."""
        most = self._config.max_neighbours
        may_be_named = not self._introduced_ms and now < self._hoping_since + self._config.introduction_s
        return min(self._config.strangers, most) if may_be_named else most

    def _forget_old(self, now: float) -> None:
        """Drop addresses nobody vouches for any more, and the oldest ones past the limit."""
        oldest_ms = (now - self._config.forget_s) * 1000
        fresh = {peer: known for peer, known in self._known.items() if known.dated_ms > oldest_ms}
        if len(fresh) > self._config.max_known:
            # Anybody can date a record now, so dates decide among strangers only.
            needed = self._introduced | self.links.keys() | {self.me.learner}
            order = sorted(fresh, key=lambda peer: (peer not in needed, -fresh[peer].dated_ms))
            fresh = {peer: fresh[peer] for peer in order[: self._config.max_known]}
        self._known = fresh

    def _hello(self, now: float) -> Hello:
        return Hello(
            wire_version=limits.WIRE_VERSION,
            run=self.me.run,
            role=int(self.me.role),
            now_ms=int(now * 1000),
            newest_version=self.me.newest_version,
            ledger_height=self.me.ledger_height,
        )
