"""Peer discovery: the directory's address book, and which peers to dial.

The directory is only an address book. A node refreshes its own signed record, looks the others up, and dials the
learner, the neighbors the learner introduces, and others at random up to `max_neighbors` links. Those are drawn subnet
by subnet, so that many records of one subnet are no more likely to be drawn than one. Anybody can write records:
`p2prl.swarm.peers.dial_rules` says which of their addresses are dialed, and how often.

Pure: directory and dial commands go to `commands`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set

from p2prl.clock import backoff_s
from p2prl.errors import RemoteProtocolError, StaleWorkError
from p2prl.protocol import limits
from p2prl.protocol.envelope import seal
from p2prl.protocol.identity import PeerId, peer_id_of
from p2prl.protocol.kinds import Role
from p2prl.protocol.peer_messages import LISTED, Introduction, PeerRecord, standby_note
from p2prl.swarm.events import Command, Dial, LookUp, Register
from p2prl.swarm.peers.address_book import AddressBook, KnownPeer
from p2prl.swarm.peers.bans import Bans
from p2prl.swarm.peers.connections_config import DIAL_S, ConnectionsConfig
from p2prl.swarm.peers.dial_rules import ASKED_DIALS, DialBudget, DialRules, Network, rules_for
from p2prl.swarm.peers.local_peer import LocalPeer
from p2prl.swarm.peers.meetings import is_direct_public
from p2prl.swarm.peers.run_size import MOST_KNOWN, MOST_NAMES, RunSize
from p2prl.swarm.peers.subnets import Subnet
from p2prl.swarm.ports import Randomness

_KEY_CHECK_S = 180.0
"""For this long a node looks records up however many links it has: one of its own key would tell that another machine
uses the key (`p2prl.net.process.key_use`), and that one writes its record every 30 s."""


_OTHER_RUNS = 16
"""Peers of other runs that are remembered: one tells the user that the link is wrong, more say no more."""


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
        links: Set[PeerId],
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
        self._book = AddressBook(local, forget_s=config.forget_s)
        self._size = RunSize(rng)
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
        self._dialing: dict[PeerId, float] = {}
        """Until when a dial counts as a link."""
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
        entry = self._book.peers.get(peer)
        return () if entry is None else entry.addresses

    def on_hello(self, peer: PeerId, run: bytes) -> None:
        """A peer without a link says hello for this run."""
        if run != self._local.run and len(self.other_runs) < _OTHER_RUNS:
            self.other_runs.add(peer)

    @property
    def has_found(self) -> bool:
        """Whether the directory has a record of a peer of this run."""
        return bool(self._book.peers)

    @property
    def offers(self) -> tuple[tuple[bytes, float], ...]:
        """(public key, price) of the volunteers that agree to stand by."""
        return tuple(entry.offer for entry in self._book.peers.values() if entry.offer is not None)

    def record_of(self, peer: PeerId) -> bytes:
        """The peer's newest record, its envelope; empty when none is known."""
        entry = self._book.peers.get(peer)
        return b"" if entry is None else entry.raw

    def is_listed(self, peer: PeerId, since_ms: int) -> bool | None:
        """Whether the peer's newest record says that join links may name it; None if it did, before `since_ms`."""
        entry = self._book.peers.get(peer)
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
        if peer in self._book.peers:
            self._book.peers[peer].attempts = 0

    def on_link_lost(self, peer: PeerId, now: float) -> None:
        """A link or dial failed: dial the peer again only after a backoff."""
        self._own.discard(peer)
        entry = self._book.peers.get(peer)
        if entry is not None:
            entry.attempts += 1
            entry.dial_after = max(
                entry.dial_after, now + backoff_s(entry.attempts, base_s=1.0, cap_s=60.0, rng=self._rng)
            )

    def on_learner_missing(self, now: float) -> None:
        """No learner is linked: look up peers soon."""
        self.next_refresh = min(self.next_refresh, now + self._config.eager_refresh_s)

    def on_dial_failed(self, peer: PeerId) -> None:
        """A dial is no longer under way."""
        self._dialing.pop(peer, None)

    def on_introduction(self, message: Introduction, sent_ms: int, now: float) -> None:
        """Dial the peers the learner introduced. Raises `StaleWorkError` when the message is older than the last."""
        if message.peer != self._local.identity.public_key:
            raise RemoteProtocolError("introduction meant for another peer")
        if sent_ms <= self._introduced_ms:
            raise StaleWorkError("introduction older than the last")
        self._introduced_ms = sent_ms
        self.introduced = frozenset(map(peer_id_of, message.neighbors)) - {self._local.identity.peer_id}
        if missing := self._without_addresses():
            named = LookUp(tuple(missing[:MOST_NAMES]), is_sample=False)
            self.commands.append(named if self._size.is_crowd(now) else LookUp())
        self.dial(now)

    def on_records(self, records: list[bytes], now: float) -> None:
        """Take in peer records from the directory, skipping unusable ones: anybody can write to the directory."""
        self._size.saw(len(records), now)
        most = min(self._config.max_known, MOST_KNOWN if self._size.is_crowd(now) else self._config.max_known)
        needed = {*self._named(), *self._links}
        for peer in self._book.take(records, now, needed=needed, most=most):
            if self._is_named(peer) and peer in self._book.peers:  # the waiting time was its old address's
                self._book.peers[peer].dial_after = now
        self.dial(now)

    def refresh(self, now: float, *, learner_linked: bool, awaited: Sequence[PeerId] = ()) -> None:
        """Publish our record, and look up other peers while links or addresses are missing, or newer records of the
        `awaited` peers."""
        is_connected = learner_linked or self._local.role is Role.LEARNER
        is_crowd, lacks_links, missing = self._size.is_crowd(now), self._lacks_links(), self._without_addresses()
        # A learner has no room for a crowd: who has all other links waits for a place without haste.
        is_calm = is_connected or (is_crowd and not lacks_links)
        self.next_refresh = now + (self._config.refresh_s if is_calm else self._config.eager_refresh_s)
        self.commands.append(
            Register(
                own_record(self._local, now),
                now + limits.PEER_RECORD_TTL_S,
                under_run=not is_crowd or self._size.writes_for_all(now),
                under_name=is_crowd,
            )
        )
        is_fresh = now < self._local.started_ms / 1000 + _KEY_CHECK_S
        is_due = now >= self._looked_up_at + _RECORDS_S
        if is_crowd:
            own, learner = self._local.identity.peer_id, self._local.learner
            unread = self._without_record() if is_due or self._local.role is Role.LEARNER else []
            sought = [own] * is_fresh + (
                [] if learner is None or is_connected or (is_calm and not is_due) else [learner]
            )
            names = tuple(dict.fromkeys([*sought, *missing, *awaited, *unread]))[:MOST_NAMES]
            lookup = LookUp(names, is_sample=is_due or lacks_links)
        else:
            lookup = LookUp(is_sample=is_fresh or is_due or not is_connected or lacks_links or bool(missing or awaited))
        if lookup.is_sample:
            self._looked_up_at = now
        if lookup.is_sample or lookup.peers:
            self.commands.append(lookup)

    def dial(self, now: float) -> None:
        """Dial known peers while there is room for links."""
        self._dialing = {peer: until for peer, until in self._dialing.items() if until > now}
        dialing = sum(peer not in self._links for peer in self._dialing)
        used, own = len(self._links) + dialing, len(self._own) + dialing
        target = self._random_link_target(now)
        # Those that dial this node may all be one attacker: some links are its own choice, however many others open.
        free = max(target - used, min(self._config.own_links, target) - own)
        # An introduced peer is dialed beyond the present links: those were drawn without knowing the swarm.
        beyond = self._most_with_introduced(now) - used
        if free <= 0 and beyond <= 0:
            return
        candidates = self._candidates(now, named_only=free <= 0)
        room = max(free, min(sum(peer in self.introduced for peer, _ in candidates), beyond))
        if room <= 0:
            return
        # The learner first, then introduced peers, then random ones: random links keep a swarm connected.
        crowd = self._crowd(candidates)
        candidates.sort(key=lambda p: (p[0] != self._local.learner, p[0] not in self.introduced, crowd[p[0]]))
        for peer, entry in candidates[:room]:
            allowed = self.rules.chosen(entry.addresses, peer)
            granted = self._budget.take(allowed, now) if allowed else ()
            if allowed and not granted:
                continue  # it stays a candidate
            entry.attempts += 1
            entry.dial_after = now + 1.0 + backoff_s(entry.attempts, base_s=2.0, cap_s=60.0, rng=self._rng)
            if granted:
                self._dialing[peer] = now + DIAL_S
                self.commands.append(Dial(peer, granted))

    def _candidates(self, now: float, *, named_only: bool) -> list[tuple[PeerId, KnownPeer]]:
        """Known peers that may be dialed now: all, or the learner and the introduced ones."""
        known = self._book.peers
        pool: Iterable[tuple[PeerId, KnownPeer]] = known.items()
        if named_only:
            pool = [(peer, known[peer]) for peer in self._named() if peer in known]
        return [
            (peer, entry)
            for peer, entry in pool
            if peer not in self._links
            and entry.dial_after <= now
            and entry.addresses
            and (entry.attempts < _MAX_ATTEMPTS or self._is_named(peer))
            and not self._bans.is_banned(peer, now)
        ]

    def is_settled(self, now: float) -> bool:
        """Whether no link is missing."""
        return not (self._lacks_links() or self.seeks_introduced(now))

    def seeks_introduced(self, now: float) -> bool:
        """Whether introduced peers are to be linked that are not."""
        return len(self._links) < self._most_with_introduced(now) and not self.introduced <= self._links

    def may_dial(self, peer: PeerId, address: str, now: float, *, by_learner: bool = False) -> bool:
        """Whether to dial an address that the learner or another neighbor has named for `peer`, and take it from the
        budget of such dials."""
        if self._bans.is_banned(peer, now) or not self.rules.allows(address, peer):
            return False
        # Anybody may ask the learner for a meeting; whom it has introduced is dialed like others of this node's choice.
        is_chosen = by_learner and self._is_named(peer)
        budget = self._budget if is_chosen else self._asked_budgets[by_learner]
        return bool(budget.take((address,), now))

    def unreached(self, now: float) -> list[PeerId]:
        """Introduced peers that are linked or wanted, and the learner, with records of no public address: routers stand
        before them."""
        wanted = self._named() if self.seeks_introduced(now) else [*self._links, self._local.learner]
        return [peer for peer in wanted if peer and self._is_named(peer) and self.is_behind_router(peer)]

    def is_behind_router(self, peer: PeerId) -> bool:
        """Whether a peer's record names no public address; False when there is no record."""
        return peer in self._book.peers and not any(map(is_direct_public, self._book.peers[peer].addresses))

    def _named(self) -> list[PeerId]:
        """The learner, once it is known, and the introduced peers."""
        learner = self._local.learner
        return sorted(self.introduced if learner is None else {*self.introduced, learner})

    def _is_named(self, peer: PeerId) -> bool:
        return peer == self._local.learner or peer in self.introduced

    def _crowd(self, candidates: list[tuple[PeerId, KnownPeer]]) -> dict[PeerId, tuple[int, int, float, float]]:
        """Place of each candidate in the draw: peers of its provider and of its subnet that are linked, dialed or
        drawn before it, then lots of the provider and the peer.

        The provider has one lot, however many peers it has: with one each, the largest crowd would be drawn first.
        """
        near = {*self._links, *self._dialing} & self._book.peers.keys()
        counted = [self._book.peers[peer] for peer in near]
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

    def _without_addresses(self) -> list[PeerId]:
        """Introduced peers that are neither linked nor in the address book."""
        return [peer for peer in sorted(self.introduced) if peer not in self._book.peers and peer not in self._links]

    def _without_record(self) -> list[PeerId]:
        """Linked peers that are not in the address book: they have dialed this node."""
        return [peer for peer in self._links if peer not in self._book.peers]

    def _most_with_introduced(self, now: float) -> int:
        """Links up to which introduced peers are dialed. In a crowd the learner's places change hands, and each time it
        introduces others: the links of a few introductions are enough."""
        most = self._config.max_with_introduced
        return most // 2 if self._size.is_crowd(now) else most

    def _random_link_target(self, now: float) -> int:
        """Links to dial up to at random; fewer while an introduction is awaited."""
        most = self._config.max_neighbors
        waiting = not self._introduced_ms and now < self._introduction_wait_from + self._config.introduction_wait_s
        return min(self._config.random_links, most) if waiting else most


def own_record(local: LocalPeer, now: float) -> bytes:
    """The signed record of this node, for the directory."""
    addresses = local.addresses
    notes = (LISTED,) if local.is_listed and addresses else ()
    if local.price is not None:
        notes = (*notes, standby_note(local.price))
    addresses = (*addresses[: limits.MAX_ADDRESSES - len(notes)], *notes)
    record = PeerRecord(int(local.role), addresses, local.newest_version, local.started_ms)
    return seal(local.identity, record, run=local.run, now=now)
