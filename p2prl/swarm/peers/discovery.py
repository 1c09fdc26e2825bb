"""Peer discovery: the directory's address book, and which peers to dial.

The directory is only an address book. A node refreshes its own signed record, looks the others up, and dials the
learner, the neighbors the learner introduces, and others at random up to `max_neighbors` links. Those are drawn subnet
by subnet, so that many records of one subnet are no more likely to be drawn than one. Anybody can write records:
`p2prl.swarm.peers.dial_rules` says which of their addresses are dialed, and how often.

Pure: directory and dial commands go to `commands`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from p2prl.clock import backoff_s
from p2prl.errors import RemoteProtocolError, StaleWorkError
from p2prl.protocol import limits
from p2prl.protocol.envelope import body_of, open_envelope, seal
from p2prl.protocol.identity import PeerId, peer_id_of
from p2prl.protocol.kinds import Role
from p2prl.protocol.peer_messages import LISTED, Introduction, PeerRecord, standby_note
from p2prl.swarm.events import Command, Dial, LookUp, Register
from p2prl.swarm.peers.bans import Bans
from p2prl.swarm.peers.config import DIAL_S, ConnectionsConfig
from p2prl.swarm.peers.dial_rules import ASKED_DIALS, DialBudget, DialRules, Network, rules_for
from p2prl.swarm.peers.local_peer import LocalPeer
from p2prl.swarm.peers.meetings import is_direct_public
from p2prl.swarm.peers.subnets import UNKNOWN, Subnet, provider_of, subnet_of
from p2prl.swarm.ports import Randomness

_KEY_CHECK_S = 180.0
"""For this long a node looks records up however many links it has: one of its own key would tell that another machine
uses the key (`p2prl.net.process.key_use`), and that one writes its record every 30 s."""


_OTHER_RUNS = 16
"""Peers of other runs that are remembered: one tells the user that the link is wrong, more say no more."""


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
    subnet: Subnet = UNKNOWN
    """Where the peer says it is."""
    provider: Subnet = UNKNOWN
    raw: bytes = b""
    """The record's envelope."""
    is_listed: bool = False
    """Whether the peer has chosen that join links may name it."""
    offer: tuple[bytes, float] | None = None
    """Key and price of a volunteer that agrees to stand by."""

    def move(self, record: PeerRecord, signed_ms: int, raw: bytes, author: bytes) -> bool:
        """Take in a newer record. Returns whether the addresses are others than before."""
        addresses, self.is_listed = record.dialable, record.is_listed
        price = record.price if record.role == Role.VOLUNTEER else None
        self.offer = None if price is None else (author, price)
        moved = addresses != self.addresses
        if moved:
            self.subnet = subnet_of(addresses[0]) if addresses else UNKNOWN
            self.provider = provider_of(addresses[0]) if addresses else UNKNOWN
            self.attempts = 0
        self.addresses, self.signed_ms, self.raw = addresses, signed_ms, raw
        return moved


_RECORDS_S = 600.0
"""A node with all its links looks records up this often: it remembers its neighbors' addresses from them."""

_MAX_ATTEMPTS = 24
"""Dials of a stranger, and failures, after which it is given up: behind a router, or not there. That is twelve dials in
ten minutes. A peer that the learner has introduced is tried as long as its record is there."""


class Discovery:
    """Address book and dialing.

    The address book and the directory's timer are together, because what the book lacks brings the next lookup forward.
    """

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
        self.other_runs: set[PeerId] = set()
        """Some peers whose hello named another run than ours."""
        self.introduced: frozenset[PeerId] = frozenset()
        """Peers the learner introduced last."""
        self._introduced_ms = 0
        """When the learner signed that introduction."""
        self._introduction_wait_from = now
        """When the wait for an introduction began: at the start, or with the link to the learner."""
        self.next_refresh = now
        self._looked_up_at = now
        self.commands: list[Command] = []
        self._last_records: frozenset[bytes] = frozenset()
        """Well-formed records of the last lookup: a signature is verified once, not at every lookup."""
        self._own: set[PeerId] = set()
        """Linked peers that this node dialed."""
        self._budget = DialBudget()
        self._asked_budgets = {by_learner: DialBudget(ASKED_DIALS) for by_learner in (True, False)}
        self._networks: tuple[Network, ...] = ()
        self.rules = DialRules(is_local=config.local_run)
        """Addresses of strangers that may be dialed."""

    def set_addresses(self, addresses: tuple[str, ...], now: float) -> None:
        """Set our addresses; a change is published in the directory soon."""
        if addresses != self._local.addresses:
            self._local.addresses = addresses
            self.next_refresh = now
            self._set_rules()

    def set_networks(self, networks: Iterable[Network]) -> None:
        """Set the private networks of this machine: peers on them may be dialed there."""
        self._networks = tuple(networks)
        self._set_rules()

    def _set_rules(self) -> None:
        self.rules = rules_for(self._local.addresses, self._networks, is_local=self._config.local_run)

    def addresses_of(self, peer: PeerId) -> tuple[str, ...]:
        """Addresses of a peer according to the directory."""
        entry = self._known.get(peer)
        return () if entry is None else entry.addresses

    def on_hello(self, peer: PeerId, run: bytes) -> None:
        """A peer without a link says hello for this run."""
        if run != self._local.run and len(self.other_runs) < _OTHER_RUNS:
            self.other_runs.add(peer)

    @property
    def has_found(self) -> bool:
        """Whether the directory has a record of a peer of this run."""
        return bool(self._known)

    @property
    def offers(self) -> tuple[tuple[bytes, float], ...]:
        """(public key, price) of the volunteers that agree to stand by."""
        return tuple(entry.offer for entry in self._known.values() if entry.offer is not None)

    def record_of(self, peer: PeerId) -> bytes:
        """The peer's newest record, its envelope; empty when none is known."""
        entry = self._known.get(peer)
        return b"" if entry is None else entry.raw

    def is_listed(self, peer: PeerId, since_ms: int) -> bool | None:
        """Whether the peer's newest record says that join links may name it; None if it did, before `since_ms`."""
        entry = self._known.get(peer)
        if entry is None or not entry.is_listed:
            return False
        return True if entry.signed_ms >= since_ms else None

    def on_link(self, peer: PeerId, now: float, *, dialed: bool) -> None:
        """A link to a peer is up; `dialed` says that this node opened it."""
        if dialed:
            self._own.add(peer)
            if len(self._links) <= 1:
                self.next_refresh = now  # this node was alone: nobody has its record
        if peer == self._local.learner:
            self._introduction_wait_from = now
        if peer in self._known:
            self._known[peer].attempts = 0

    def on_link_lost(self, peer: PeerId, now: float) -> None:
        """A link or dial failed: dial the peer again only after a backoff."""
        self._own.discard(peer)
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
        unusable: set[bytes] = set()
        for raw in records:
            if raw in self._last_records:
                continue
            try:
                opened = open_envelope(raw, now=now)
                record = body_of(opened, PeerRecord)
                record.check()
                Role(record.role)
            except (RemoteProtocolError, StaleWorkError, ValueError):
                unusable.add(raw)
                continue
            peer = peer_id_of(opened.author)
            stale = now - opened.sent_ms / 1000 > limits.PEER_RECORD_TTL_S
            if opened.run != self._local.run or stale or peer == self._local.identity.peer_id:
                continue
            entry = self._known.get(peer)
            if entry is None:
                entry = self._known[peer] = _KnownPeer((), -1)
            if opened.sent_ms > entry.signed_ms:
                moved = entry.move(record, opened.sent_ms, raw, opened.author)
                if moved and self._is_named(peer):  # the waiting time was its old address's
                    entry.dial_after = now
        self._last_records = frozenset(records) - unusable
        self._forget_old(now)
        self.dial(now)

    def refresh(self, now: float, *, learner_linked: bool, awaits_record: bool = False) -> None:
        """Publish our record, and look up other peers while links or addresses are missing, or a newer record of a peer
        is awaited."""
        is_connected = learner_linked or self._local.role is Role.LEARNER
        self.next_refresh = now + (self._config.refresh_s if is_connected else self._config.eager_refresh_s)
        local = self._local
        addresses = local.addresses
        notes = (LISTED,) if local.is_listed and addresses else ()
        if local.price is not None:
            notes = (*notes, standby_note(local.price))
        addresses = (*addresses[: limits.MAX_ADDRESSES - len(notes)], *notes)
        record = PeerRecord(int(local.role), addresses, local.newest_version, local.started_ms)
        raw = seal(self._local.identity, record, run=self._local.run, now=now)
        self.commands.append(Register(raw, now + limits.PEER_RECORD_TTL_S))
        is_fresh = now < self._local.started_ms / 1000 + _KEY_CHECK_S
        is_due = now >= self._looked_up_at + _RECORDS_S
        lacks = awaits_record or self._lacks_links() or self._lacks_addresses()
        if is_fresh or is_due or not is_connected or lacks:
            self._looked_up_at = now
            self.commands.append(LookUp())

    def dial(self, now: float) -> None:
        """Dial known peers while there is room for links."""
        dialing = sum(entry.dialing_until > now and peer not in self._links for peer, entry in self._known.items())
        used, own = len(self._links) + dialing, len(self._own) + dialing
        candidates = [
            (peer, entry)
            for peer, entry in self._known.items()
            if peer not in self._links
            and entry.dial_after <= now
            and entry.addresses
            and (entry.attempts < _MAX_ATTEMPTS or self._is_named(peer))
            and not self._bans.is_banned(peer, now)
        ]
        # The learner first, then introduced peers, then random ones: random links keep a swarm connected.
        # An introduced peer is dialed beyond the present links: those were drawn without knowing the swarm.
        introduced = sum(peer in self.introduced for peer, _ in candidates)
        target = self._random_link_target(now)
        # Those that dial this node may all be one attacker: some links are its own choice, however many others open.
        room = max(
            target - used,
            min(self._config.own_links, target) - own,
            min(introduced, self._config.max_with_introduced - used),
        )
        if room <= 0:
            return
        crowd = self._crowd(candidates, now)
        candidates.sort(key=lambda p: (p[0] != self._local.learner, p[0] not in self.introduced, crowd[p[0]]))
        for peer, entry in candidates[:room]:
            allowed = self.rules.chosen(entry.addresses, peer)
            granted = self._budget.take(allowed, now) if allowed else ()
            if allowed and not granted:
                continue  # it stays a candidate
            entry.attempts += 1
            entry.dial_after = now + 1.0 + backoff_s(entry.attempts, base_s=2.0, cap_s=60.0, rng=self._rng)
            if granted:
                entry.dialing_until = now + DIAL_S
                self.commands.append(Dial(peer, granted))

    def may_dial(self, peer: PeerId, address: str, now: float, *, by_learner: bool = False) -> bool:
        """Whether to dial an address that the learner or another neighbor has named for `peer`, and take it from the
        budget of such dials."""
        if self._bans.is_banned(peer, now) or not self.rules.allows(address, peer):
            return False
        # Anybody may ask the learner for a meeting; whom it has introduced is dialed like others of this node's choice.
        is_chosen = by_learner and self._is_named(peer)
        budget = self._budget if is_chosen else self._asked_budgets[by_learner]
        return bool(budget.take((address,), now))

    def unreached(self) -> list[PeerId]:
        """Introduced peers, and the learner, with records that name no public address: routers stand before them."""
        learner = self._local.learner
        wanted = self.introduced if learner is None else {*self.introduced, learner}
        return [peer for peer in wanted if self.is_behind_router(peer)]

    def is_behind_router(self, peer: PeerId) -> bool:
        """Whether a peer's record names no public address; False when there is no record."""
        return peer in self._known and not any(map(is_direct_public, self._known[peer].addresses))

    def _is_named(self, peer: PeerId) -> bool:
        return peer == self._local.learner or peer in self.introduced

    def _crowd(
        self, candidates: list[tuple[PeerId, _KnownPeer]], now: float
    ) -> dict[PeerId, tuple[int, int, float, float]]:
        """Place of each candidate in the draw: peers of its provider and of its subnet that are linked, dialed or
        drawn before it, then lots of the provider and the peer.

        The provider has one lot, however many peers it has: with one each, the largest crowd would be drawn first.
        """
        counted = [entry for peer, entry in self._known.items() if peer in self._links or entry.dialing_until > now]
        providers = Counter(entry.provider for entry in counted)
        subnets = Counter(entry.subnet for entry in counted)
        lots: dict[Subnet, float] = {}
        crowd = {}
        drawn = sorted(((self._rng.random(), peer, entry) for peer, entry in candidates), key=lambda lot: lot[:2])
        for lot, peer, entry in drawn:
            provider_lot = lots.setdefault(entry.provider, self._rng.random())
            crowd[peer] = providers[entry.provider], subnets[entry.subnet], provider_lot, lot
            providers[entry.provider] += 1
            subnets[entry.subnet] += 1
        return crowd

    def _lacks_links(self) -> bool:
        return len(self._links) < self._config.max_neighbors or len(self._own) < self._config.own_links

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
            # Anybody can sign a record with the present date, so dates decide among strangers of one subnet only.
            needed = {*self.introduced, *self._links, self._local.learner}
            earlier: Counter[Subnet] = Counter()
            place = {}
            for peer in sorted(fresh, key=lambda peer: -fresh[peer].signed_ms):
                place[peer] = earlier[fresh[peer].subnet]
                earlier[fresh[peer].subnet] += 1
            order = sorted(fresh, key=lambda peer: (peer not in needed, place[peer], -fresh[peer].signed_ms))
            fresh = {peer: fresh[peer] for peer in order[: self._config.max_known]}
        self._known = fresh
