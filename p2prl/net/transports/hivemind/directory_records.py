"""Owner-signed directory records: the validator that every node of the directory runs.

A record is stored under (key, owner): its subkey is the owner's peer id, and its value ends in the owner's Ed25519
signature over key, owner, value and expiry. Nothing else is stored, forwarded or returned, so a stranger can neither
forge nor overwrite nor extend another peer's record. The class has the interface of hivemind's `RecordValidatorBase`
without importing it. Pure, except for the clock passed in.

All peers of a run publish under one key, whose size is bounded. When it is full, a new owner is not refused: it takes
the place of another, so that a flood of keys cannot shut anybody out. The learner and linked peers of standing keep
their records; of the others the subnet with most bytes loses its largest record, at random among equals. An honest
record has a few hundred bytes and is written again every 30 s, so it comes back when the lot falls on it.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from p2prl.clock import Clock
from p2prl.errors import IdentityError
from p2prl.protocol import limits
from p2prl.protocol.identity import SIGNATURE_BYTES, Identity, PeerId, public_key_of, verify_raw
from p2prl.swarm.peers.subnets import Subnet
from p2prl.swarm.ports import Randomness
from p2prl.swarm.random_choice import draw_one


@dataclass(frozen=True, slots=True)
class HeldRecord:
    """A stored record."""

    size_bytes: int
    subnet: Subnet
    importance: int
    """0 for a peer without a link."""


def displaced(
    held: Mapping[str, HeldRecord], newcomer: HeldRecord, *, max_bytes: int, rng: Randomness
) -> list[str] | None:
    """The owners whose records make room for a new one, by owner; None when it has to be refused."""
    missing = sum(record.size_bytes for record in held.values()) + newcomer.size_bytes - max_bytes
    left, gone = dict(held), list[str]()
    while missing > 0:
        candidates = {owner: record for owner, record in left.items() if record.importance <= newcomer.importance}
        if not candidates:
            return None
        least = min(record.importance for record in candidates.values())
        candidates = {owner: record for owner, record in candidates.items() if record.importance == least}
        by_subnet: Counter[Subnet] = Counter()
        for record in candidates.values():
            by_subnet[record.subnet] += record.size_bytes
        crowded = max(by_subnet.values())
        sizes = {
            owner: record.size_bytes for owner, record in candidates.items() if by_subnet[record.subnet] == crowded
        }
        largest = sorted(owner for owner, size in sizes.items() if size == max(sizes.values()))
        owner = draw_one(largest, rng)
        missing -= left.pop(owner).size_bytes
        gone.append(owner)
    return gone


MAX_RECORD_BYTES = 4 * 1024
"""One record's value, signature included: eight addresses and a signed hello fit, and files do not."""

MAX_RECORD_TTL_S = 600.0
"""How far ahead a record may expire. Longer ones would let a flood outlive the peer that sent it."""

_DOMAIN = b"p2prl/record/v1"
_HEAD = struct.Struct("<IIId")


class Record(Protocol):
    """Record as hivemind hands it to a validator: `key` is a hash, `subkey` msgpack, `expiration_time` Unix seconds."""

    @property
    def key(self) -> bytes: ...
    @property
    def subkey(self) -> bytes: ...
    @property
    def value(self) -> bytes: ...
    @property
    def expiration_time(self) -> float: ...


class OwnerSignedRecords:
    """Signs this peer's records and validates everybody's."""

    def __init__(self, identity: Identity, clock: Clock) -> None:
        self._identity = identity
        self._clock = clock

    def sign_value(self, record: Record) -> bytes:
        """The value with this peer's signature appended. Under another owner it would not verify anywhere."""
        return record.value + self._identity.sign_raw(_signed_bytes(record, record.value))

    def validate(self, record: Record) -> bool:
        """Whether the record's owner signed it and it is within the limits. Never raises on any bytes."""
        expires_at = record.expiration_time
        if type(record.value) is not bytes or type(expires_at) not in (float, int):
            return False  # a stored dictionary contains types of the sender's choosing
        if not SIGNATURE_BYTES < len(record.value) <= MAX_RECORD_BYTES:
            return False
        latest = self._clock.now() + MAX_RECORD_TTL_S + limits.MAX_CLOCK_SKEW_S
        if not (0 <= expires_at <= latest and math.isfinite(expires_at)):
            return False
        owner = owner_of(record.subkey)
        value, signature = record.value[:-SIGNATURE_BYTES], record.value[-SIGNATURE_BYTES:]
        if owner is None or not _is_packed_bytes(value):
            return False
        return verify_raw(public_key_of(owner), _signed_bytes(record, value), signature)

    def strip_value(self, record: Record) -> bytes:
        """The value without its signature; called on validated records only."""
        return record.value[:-SIGNATURE_BYTES]


def owner_of(subkey: bytes) -> PeerId | None:
    """The peer id a subkey names, or None.

    Only hivemind's own encoding is accepted: hivemind re-encodes subkeys when it forwards a dictionary, and another
    encoding would then break the signature at honest nodes.
    """
    try:
        text = msgspec.msgpack.decode(subkey, type=str)
        public_key_of(PeerId(text))
    except (msgspec.DecodeError, ValueError, IdentityError):  # not UTF-8 is a plain ValueError
        return None
    return PeerId(text) if msgspec.msgpack.encode(text) == subkey else None


def _is_packed_bytes(value: bytes) -> bool:
    """Whether this is msgpack of some bytes: hivemind's search hangs on values that it cannot unpack."""
    try:
        return msgspec.msgpack.encode(msgspec.msgpack.decode(value, type=bytes)) == value
    except (msgspec.DecodeError, ValueError):
        return False


def _signed_bytes(record: Record, value: bytes) -> bytes:
    lengths = _HEAD.pack(len(record.key), len(record.subkey), len(value), record.expiration_time)
    return b"".join((_DOMAIN, lengths, record.key, record.subkey, value))
