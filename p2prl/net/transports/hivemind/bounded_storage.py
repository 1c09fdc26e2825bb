"""Storage of a DHT node for others' records: bounded by key, and read by samples.

A reader that got all N records of a run would cost the swarm N² and soon an answer of more than 4 MiB, which is never
sent. So a node answers with 8 KiB of them, drawn at random, subnet by subnet: many records of one subnet are no more
likely to be in a sample than one. The record of the peer that a key is the name of is always in it.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, Protocol

import msgspec

from p2prl.errors import RemoteProtocolError
from p2prl.net.ports import PeerGuard
from p2prl.net.transports.hivemind import light_import
from p2prl.net.transports.hivemind.directory_records import HeldRecord, displaced
from p2prl.protocol.directory_keys import name_key
from p2prl.protocol.envelope import Envelope
from p2prl.protocol.identity import SIGNATURE_BYTES, PeerId
from p2prl.protocol.peer_messages import PeerRecord
from p2prl.protocol.wire_codec import decode
from p2prl.swarm.peers.run_size import SAMPLE_BYTES
from p2prl.swarm.peers.subnets import UNKNOWN, Subnet, subnet_of
from p2prl.swarm.ports import Randomness
from p2prl.swarm.random_choice import draw

MAX_KEYS = 4096
"""Keys this node stores for others; those that expire first are evicted."""

MAX_KEY_BYTES = 3 * 1024 * 1024
"""All owners' records under one key: memory. Of a large run a third is there at a time, so they are of 20,000 peers."""

_DRAWN = 128
"""Records among which a sample, or one that makes room, is chosen by subnet: six times as many as a sample holds."""

_OWNER_OF_KEY = 1_000
"""Importance of the peer that a key is the name of: nobody displaces it there."""


class Stored(Protocol):
    """An entry under a key."""

    value: bytes


def sample_of(held: Mapping[str, Stored], first: str | None, rng: Randomness) -> list[str]:
    """The owners whose records a reader gets: all if they fit, or a sample, subnet by subnet; the `first` in any case.

    `held` are the stored records by owner.
    """
    if len(held) <= _DRAWN and sum(len(entry.value) for entry in held.values()) <= SAMPLE_BYTES:
        return list(held)
    chosen = [] if first is None or first not in held else [first]
    seen: Counter[Subnet] = Counter()
    places: list[tuple[int, int, str]] = []
    for owner in draw(held, _DRAWN, rng):
        subnet = record_subnet(held[owner].value)
        places.append((seen[subnet], len(places), owner))
        seen[subnet] += 1
    size_bytes = sum(len(held[owner].value) for owner in chosen)
    for _, _, owner in sorted(places):
        if owner not in chosen and size_bytes + len(held[owner].value) <= SAMPLE_BYTES:
            chosen.append(owner)
            size_bytes += len(held[owner].value)
    return chosen


class KeyBounds:
    """Bytes under each key, and the peers that keys are the names of."""

    def __init__(self, guard: PeerGuard | None, hash_of: Callable[[bytes], Any], rng: Randomness) -> None:
        """`hash_of` makes a key of the DHT from one of the run's."""
        self._guard = guard
        self._hash_of = hash_of
        self._rng = rng
        self.named: dict[Any, str] = {}
        """Key → the owner whose name it is."""
        self._most_bytes: dict[Any, int] = {}
        """Key → bytes under it at most: what has expired is counted until the bound is reached."""

    def begin(self, key: Any, held_keys: Container[Any]) -> None:
        """A key has its first record. Keys that are no longer held are forgotten."""
        if len(self._most_bytes) > 2 * MAX_KEYS:
            self._most_bytes = {key: size for key, size in self._most_bytes.items() if key in held_keys}
            self.named = {key: owner for key, owner in self.named.items() if key in held_keys}
        self._most_bytes[key] = 0

    def note_name(self, key: Any, owner: str, value: bytes) -> None:
        """Notice whether a key is the name of a record's owner, in the run that the record is for."""
        if key in self.named:
            return
        with contextlib.suppress(RemoteProtocolError, msgspec.DecodeError, ValueError):
            if self._hash_of(name_key(_envelope_of(value).run, PeerId(owner))) == key:
                self.named[key] = owner

    def displaced(self, key: Any, held: Mapping[str, Stored], owner: str, value: bytes) -> list[str] | None:
        """Owners whose records make room for one, which is then counted; None when it has to be refused."""
        grown = len(value) - (len(held[owner].value) if owner in held else 0)
        if self._most_bytes.get(key, 0) + grown > MAX_KEY_BYTES:
            self._most_bytes[key] = sum(len(entry.value) for entry in held.values())
        missing = self._most_bytes.get(key, 0) + grown - MAX_KEY_BYTES
        gone: list[str] | None = []
        if missing > 0:
            # Of a few drawn at random: to weigh all of them took 50 ms for each record of a flood.
            others = draw((other for other in held if other != owner), _DRAWN, self._rng)
            records = {other: self._describe(key, other, held[other].value) for other in others}
            newcomer = self._describe(key, owner, value)
            room_bytes = sum(record.size_bytes for record in records.values()) + newcomer.size_bytes - missing
            gone = displaced(records, newcomer, max_bytes=room_bytes, rng=self._rng)
            if gone is None:
                return None
            grown -= sum(records[other].size_bytes for other in gone)
        self._most_bytes[key] = self._most_bytes.get(key, 0) + grown
        return gone

    def _describe(self, key: Any, owner: str, value: bytes) -> HeldRecord:
        importance = self._guard.importance(PeerId(owner)) if self._guard is not None else 0
        return HeldRecord(
            len(value), record_subnet(value), _OWNER_OF_KEY if self.named.get(key) == owner else importance
        )


def bounded_storage(guard: PeerGuard | None) -> Any:
    """A `DHTLocalStorage` of hivemind within these bounds. With a guard, linked peers' records are the last to go."""
    library = light_import.load()
    rng = random.Random()  # noqa: S311 - a lot between records, not a secret
    bounds = KeyBounds(guard, lambda key: library.DHTID.generate(source=key), rng)

    def sampled(key: Any, item: Any) -> Any:
        if item is None or not isinstance(item.value, library.DictionaryDHTValue):
            return item
        len(item.value)  # drops what has expired
        held = item.value.data
        chosen = sample_of(held, bounds.named.get(key), rng)
        if len(chosen) == len(held):
            return item
        shown = library.DictionaryDHTValue()
        for owner in chosen:
            shown.store(owner, held[owner].value, held[owner].expiration_time)
        return type(item)(shown, shown.latest_expiration_time)

    class Bounded(library.DHTLocalStorage):  # type: ignore[misc, name-defined]
        """Shares a full key among its owners, and shows samples of large ones."""

        def get(self, key: Any) -> Any:
            return sampled(key, super().get(key))

        def items(self) -> Iterable[tuple[Any, Any]]:
            return ((key, sampled(key, item)) for key, item in super().items())

        def store_subkey(self, key: Any, subkey: Any, value: bytes, expires_at: float) -> bool:
            item, owner = super().get(key), str(subkey)
            bounds.note_name(key, owner, value)
            if item is None or not isinstance(item.value, library.DictionaryDHTValue):
                bounds.begin(key, self.data)
                return bounds.displaced(key, {}, owner, value) == [] and bool(
                    super().store_subkey(key, subkey, value, expires_at)
                )
            len(item.value)
            gone = bounds.displaced(key, item.value.data, owner, value)
            if gone is None:
                return False
            for other in gone:
                del item.value[other]
            if expires_at > item.value.latest_expiration_time:
                self.store(key, item.value, expires_at)
            return bool(item.value.store(subkey, value, expires_at))

    return Bounded(MAX_KEYS)


def record_subnet(value: bytes) -> Subnet:
    """The subnet of the first address in a stored peer record; `UNKNOWN` for anything else.

    An owner may lie about it. Then its record names a place at which it cannot be dialed.
    """
    try:
        body = _envelope_of(value).body
        addresses = decode(body, PeerRecord, limit_bytes=len(body)).addresses
    except (RemoteProtocolError, msgspec.DecodeError, ValueError):
        return UNKNOWN
    return subnet_of(addresses[0]) if addresses else UNKNOWN


def _envelope_of(value: bytes) -> Envelope:
    raw = msgspec.msgpack.decode(value[:-SIGNATURE_BYTES], type=bytes)
    return decode(raw, Envelope, limit_bytes=len(raw))
