"""Address book of one node: what records of the directory say about other peers. Pure.

Anybody can write to the directory, so the book is bounded, and records of one subnet displace each other first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from p2prl.errors import RemoteProtocolError, StaleWorkError
from p2prl.protocol import limits
from p2prl.protocol.envelope import body_of, open_envelope
from p2prl.protocol.identity import PeerId, peer_id_of
from p2prl.protocol.kinds import Role
from p2prl.protocol.peer_messages import PeerRecord
from p2prl.swarm.peers.local_peer import LocalPeer
from p2prl.swarm.peers.subnets import UNKNOWN, Subnet, provider_of, subnet_of


@dataclass(slots=True)
class KnownPeer:
    """An entry of the address book."""

    addresses: tuple[str, ...] = ()
    signed_ms: int = -1
    """When the peer signed the record: an older record must not replace a newer one."""
    attempts: int = 0
    dial_after: float = 0.0
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


class AddressBook:
    """Newest records by peer, within bounds."""

    def __init__(self, local: LocalPeer, *, forget_s: float) -> None:
        self._local = local
        self._forget_s = forget_s
        self.peers: dict[PeerId, KnownPeer] = {}
        self._last_records: frozenset[bytes] = frozenset()
        """Well-formed records of the last lookup: a signature is verified once, not at every lookup."""

    def take(self, records: list[bytes], now: float, *, needed: Collection[PeerId], most: int) -> list[PeerId]:
        """Take in records, skipping unusable ones, and keep `most` peers, the `needed` ones first. Returns those that
        have moved."""
        unusable: set[bytes] = set()
        moved: list[PeerId] = []
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
            entry = self.peers.get(peer)
            if entry is None:
                entry = self.peers[peer] = KnownPeer()
            if opened.sent_ms > entry.signed_ms and entry.move(record, opened.sent_ms, raw, opened.author):
                moved.append(peer)
        self._last_records = frozenset(records) - unusable
        self._forget_old(now, needed, most)
        return moved

    def _forget_old(self, now: float, needed: Collection[PeerId], most: int) -> None:
        """Drop expired records, and the oldest ones past the limit."""
        oldest_ms = (now - self._forget_s) * 1000
        fresh = {peer: entry for peer, entry in self.peers.items() if entry.signed_ms > oldest_ms}
        if len(fresh) > most:
            # Anybody can sign a record with the present date, so dates decide among strangers of one subnet only.
            earlier: Counter[Subnet] = Counter()
            place = {}
            for peer in sorted(fresh, key=lambda peer: -fresh[peer].signed_ms):
                place[peer] = earlier[fresh[peer].subnet]
                earlier[fresh[peer].subnet] += 1
            order = sorted(fresh, key=lambda peer: (peer not in needed, place[peer], -fresh[peer].signed_ms))
            fresh = {peer: fresh[peer] for peer in order[:most]}
        self.peers = fresh
