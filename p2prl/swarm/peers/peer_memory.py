"""Peer memory: signed records of peers this node was linked with, to find the run again after a restart or a move.

The directory holds no record for longer than `limits.PEER_RECORD_TTL_S`, and a join link names peers of the day it was
made. So each role keeps records of its own neighbors, on disk. A record is signed by the peer it describes, and it is
kept only if an address in it is proven: this node dialed the peer, or the peer's connection came from that subnet.
Strangers cannot fill the memory: as soon as it is full, the providers and subnets that connections came from share it.
Pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from p2prl.errors import RemoteProtocolError, StaleWorkError
from p2prl.protocol import limits
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import body_of, open_envelope
from p2prl.protocol.identity import PeerId, peer_id_of
from p2prl.protocol.kinds import Role
from p2prl.protocol.peer_messages import PeerRecord
from p2prl.protocol.wire_codec import Wire, decode, encode
from p2prl.swarm.peers.dial_rules import DialRules
from p2prl.swarm.peers.subnets import UNKNOWN, Subnet, provider_of_subnet, subnet_of

MAX_REMEMBERED = 64
"""Records kept in all: of this many peers one is up even after a week, and dialing them all takes a minute."""

REMEMBER_S = 30 * 86_400.0
"""A peer not met for longer is forgotten: its address belongs to somebody else by now."""

MAX_RECORD_BYTES = 4 * 1024
"""Envelope of one record: eight addresses of 256 characters, and what surrounds them."""

MAX_FILE_BYTES = MAX_REMEMBERED * (MAX_RECORD_BYTES + 256)
"""The memory as bytes; a larger file was not written by this program."""

_SKEW_MS = int(limits.MAX_CLOCK_SKEW_S * 1000)

LASTING_ROLES = frozenset({Role.LEARNER, Role.SEEDER, Role.VALIDATOR})
"""Roles that run on machines which stay up."""


class RememberedRecord(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One entry of the file."""

    raw: bytes
    """The peer's signed record, as received."""
    linked_ms: int
    """When this node was last linked with it, Unix milliseconds."""
    subnet: str
    """Where its connection came from then."""


class _File(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    records: tuple[RememberedRecord, ...]


@dataclass(frozen=True, slots=True)
class LinkedRecord:
    """The record of a peer that is linked now."""

    peer: PeerId
    raw: bytes
    role: Role
    addresses: tuple[str, ...]
    observed: Subnet
    """Where its connection comes from."""
    is_chosen: bool
    """Whether this node dialed it."""
    since: float
    """When the link began."""
    is_listed: bool | None = False
    """Whether it has chosen that join links may name it; None if only an earlier process of it is known to have."""

    def is_proven(self, address: str) -> bool:
        """Whether the peer's connection comes from the subnet of this address of its record."""
        return self.observed != UNKNOWN and subnet_of(address) == self.observed


@dataclass(frozen=True, slots=True)
class _Entry:
    raw: bytes
    role: Role
    addresses: tuple[str, ...]
    signed_ms: int
    linked_ms: int
    subnet: Subnet
    is_listed: bool

    @property
    def worth(self) -> tuple[bool, int]:
        """Sorts lasting roles before others, and the peers met last before earlier ones."""
        return self.role not in LASTING_ROLES, -self.linked_ms


class PeerMemory:
    """Remembered peers of one run."""

    def __init__(self, run: Digest, own: PeerId, learner: PeerId | None = None) -> None:
        """`learner` is remembered whatever else is; None while the run's manifest is unknown."""
        self._run = run
        self._own = own
        self.learner = learner
        self._entries: dict[PeerId, _Entry] = {}
        self.changed = False
        """Set when there is somebody or some address to write; the owner resets it."""

    def __len__(self) -> int:
        return len(self._entries)

    def note(self, linked: Iterable[LinkedRecord], now: float) -> None:
        """Take in the records of the peers that are linked now. Unusable and unproven ones are skipped."""
        for record in linked:
            known = self._entries.get(record.peer)
            if known is not None and known.raw == record.raw:  # its signature was verified then
                entry = replace(known, linked_ms=int(now * 1000), subnet=record.observed)
            else:
                found = self._read(record.raw, int(now * 1000), record.observed)
                if found is None or found[0] != record.peer:
                    continue
                entry = found[1]
                # A record of times to come was signed by a clock that has been put right since.
                if known is not None and entry.signed_ms < known.signed_ms <= int(now * 1000) + _SKEW_MS:
                    continue
            # Whom this node dialed is where its connection goes; of others anybody could name any address.
            trusted = record.peer == self.learner or record.is_chosen
            if trusted or any(map(record.is_proven, entry.addresses)):
                self._entries[record.peer] = entry
                was = None if known is None else (known.addresses, known.is_listed)
                self.changed |= was != (entry.addresses, entry.is_listed)
        self._forget(now)

    def restore(self, data: bytes, now: float) -> None:
        """Take in a file. Anything that is not a peer's signed record of this run is skipped."""
        try:
            records = decode(data, _File, limit_bytes=MAX_FILE_BYTES).records
        except RemoteProtocolError:
            return
        for record in records[:MAX_REMEMBERED]:
            found = self._read(record.raw, min(record.linked_ms, int(now * 1000)), Subnet(record.subnet))
            if found is not None:
                peer, entry = found
                self._entries[peer] = entry
        self._forget(now)

    def to_bytes(self) -> bytes:
        """The memory as a file for `restore`."""
        entries = self._entries.values()
        return encode(_File(tuple(RememberedRecord(entry.raw, entry.linked_ms, entry.subnet) for entry in entries)))

    def addresses(self, rules: DialRules, *, lasting: bool = False) -> tuple[tuple[PeerId, str], ...]:
        """(peer, address) to try, the most promising peers first, and only addresses that a stranger may name.

        The learner first, then lasting roles, then the others, each by the time of the last link. An address through a
        relay needs the relay, so it is the last to be tried of its peer. `lasting` leaves the other roles out.
        """
        order = sorted(
            self._entries.items(),
            key=lambda item: (item[0] != self.learner, item[1].worth, item[0]),
        )
        return tuple(
            (peer, _with_peer(address, peer))
            for peer, entry in order
            if entry.role in LASTING_ROLES or not lasting
            for address in sorted(rules.chosen(entry.addresses, peer), key=lambda text: "/p2p-circuit" in text)
        )

    @property
    def listed(self) -> frozenset[PeerId]:
        """The peers that have chosen, by their newest record here, that join links may name them."""
        return frozenset(peer for peer, entry in self._entries.items() if entry.is_listed)

    def _read(self, raw: bytes, linked_ms: int, subnet: Subnet) -> tuple[PeerId, _Entry] | None:
        if len(raw) > MAX_RECORD_BYTES:
            return None
        try:
            opened = open_envelope(raw, now=None)
            record = body_of(opened, PeerRecord)
            record.check()
            role = Role(record.role)
        except (RemoteProtocolError, StaleWorkError, ValueError):
            return None
        peer = peer_id_of(opened.author)
        if opened.run != self._run or peer == self._own or not record.dialable:
            return None
        return peer, _Entry(raw, role, record.dialable, opened.sent_ms, linked_ms, subnet, record.is_listed)

    def _forget(self, now: float) -> None:
        """Drop what is too old, and what exceeds the limit: the last ones of the fullest providers and subnets."""
        oldest_ms = (now - REMEMBER_S) * 1000
        kept = {peer: entry for peer, entry in self._entries.items() if entry.linked_ms > oldest_ms}
        if len(kept) > MAX_REMEMBERED:
            place = _places(kept)
            order = sorted(kept, key=lambda peer: (peer != self.learner, place[peer], kept[peer].worth, peer))
            kept = {peer: kept[peer] for peer in order[:MAX_REMEMBERED]}
        self.changed |= len(kept) < len(self._entries)
        self._entries = kept


def _places(entries: Mapping[PeerId, _Entry]) -> dict[PeerId, int]:
    """Place of each peer in its provider's row, in which each subnet's first peer stands before any second one."""
    in_subnet: Counter[Subnet] = Counter()
    rows: defaultdict[Subnet, list[tuple[int, PeerId]]] = defaultdict(list)
    for peer in sorted(entries, key=lambda peer: (entries[peer].worth, peer)):
        subnet = entries[peer].subnet
        rows[provider_of_subnet(subnet)].append((in_subnet[subnet], peer))
        in_subnet[subnet] += 1
    in_turn = (sorted(row, key=lambda item: item[0]) for row in rows.values())
    return {peer: place for row in in_turn for place, (_, peer) in enumerate(row)}


def _with_peer(address: str, peer: PeerId) -> str:
    return address if address.endswith(f"/p2p/{peer}") else f"{address}/p2p/{peer}"


assert limits.MAX_ADDRESSES * limits.MAX_ADDRESS_CHARS < MAX_RECORD_BYTES
