"""The listings that an index keeps: quotas by key, subnet, provider and time, expiry, and replacement by newer ones.

Keys are free, so nothing is bounded by key alone: each limit by key stands beside one by subnet, and the sum over all
is bounded too. When the table is full, the subnets and mirrors that hold most give way first, so that a flood from
few addresses displaces itself and no run that was listed from another one. Pure.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from p2prl.errors import RemoteProtocolError, StaleWorkError
from p2prl.index.run_facts import checked_manifest
from p2prl.protocol.digests import Digest
from p2prl.protocol.listing import MAX_LISTING_BYTES, MAX_MANIFEST_BYTES, OpenedListing, open_listing
from p2prl.swarm.peers.subnets import Subnet, provider_of_subnet
from p2prl.swarm.token_buckets import KeyedBuckets, Rate

HERE = Subnet("loopback")
"""Of learners on the index's own machine. A proxy that does not say whom it serves looks the same, so only the limits
by key and in total bound it."""

_MIRROR = "mirror/"


_KEY_RATE, _SUBNET_RATE, _TOTAL_RATE = Rate(1 / 15, burst=8), Rate(1.0, burst=60), Rate(100.0, burst=400)


@dataclass(frozen=True, kw_only=True, slots=True)
class TableLimits:
    """Listings that an index keeps, and how many it looks at."""

    total: int = 1_024
    """Of all keys: with their manifests 70 MB at most, and an answer of some megabytes."""
    per_key: int = 8
    """An owner with more runs than that has a key for each anyway: `p2prl init` makes one."""
    per_subnet: int = 16
    """Of one /24 or /48: a laboratory with a learner on every other machine. 16 subnets fill a quarter of the table."""
    per_provider: int = 128
    """Of one /16 or /32, where many subnets are as easy to rent as one: an eighth of the table."""
    per_mirror: int = 512
    """From one mirrored index: half of the table, so that a flood there leaves room for learners that come here."""
    key_rate: Rate = _KEY_RATE
    """Submissions of one key: a learner sends one a minute, and a second one with its manifest at first."""
    subnet_rate: Rate = _SUBNET_RATE
    """Submissions of one subnet whose signature is checked: four times what its listings need."""
    total_rate: Rate = _TOTAL_RATE
    """Signatures checked in a second, of all: a hundred take some 3 % of a core, and 1,024 listings need 17."""
    remembered: int = 8_192
    """Subnets and keys whose rates are remembered."""


class Refusal(StrEnum):
    """Why a listing is not taken; the values stand in the JSON of the answer."""

    INVALID = "invalid"
    """No honest learner sends it."""
    EXPIRED = "expired"
    OLDER = "older"
    """A listing of the run is here that is as new."""
    TOO_MANY = "too many"
    """A quota is used up."""
    TOO_OFTEN = "too often"
    """A rate is used up."""


class ListingRefusedError(Exception):
    """A listing was not taken."""

    def __init__(self, why: Refusal, text: str) -> None:
        super().__init__(text)
        self.why = why


class ManifestWantedError(Exception):
    """The index does not know the run yet: send the listing again with the run's manifest."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A listing in the table."""

    opened: OpenedListing
    manifest: bytes
    """The run's manifest, as its learner signed it."""
    source: Subnet
    """Subnet that it came from, or the mirrored index. Never shown."""
    provider: Subnet
    """The provider's network around that subnet."""
    first_seen: float
    """Since when the run has been listed here without a gap, seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Row:
    """A listing as an index shows it."""

    kept: Kept
    crowd: int
    """Listings that share its subnet: they share one subnet's part of those who take any run."""


class ListingTable:
    """Listings by run."""

    def __init__(self, limits: TableLimits | None = None) -> None:
        self._limits = limits = limits or TableLimits()
        self._kept: dict[Digest, Kept] = {}
        self._by_key = KeyedBuckets(limits.key_rate, capacity=limits.remembered)
        self._by_subnet = KeyedBuckets(limits.subnet_rate, capacity=limits.remembered)
        self._of_all = KeyedBuckets(limits.total_rate, capacity=1)
        self.changes = 0
        """Grows with every change of what `rows` gives."""

    def __len__(self) -> int:
        return len(self._kept)

    def offer(self, raw: bytes, manifest: bytes, *, source: Subnet, now: float) -> Kept:
        """Take a listing that came from `source` at `now`, seconds since the epoch. `manifest` may be empty for a run
        that is here already.

        Raises `ListingRefusedError`, or `ManifestWantedError` for a listing that would be taken with its manifest.
        """
        self.expire(now)
        if len(raw) > MAX_LISTING_BYTES or len(manifest) > MAX_MANIFEST_BYTES:
            raise ListingRefusedError(Refusal.INVALID, "the listing or its manifest is too long")
        self._pay_signature(source, now)
        try:
            opened = open_listing(raw, now=now)
        except RemoteProtocolError as error:
            raise ListingRefusedError(Refusal.INVALID, str(error)) from error
        except StaleWorkError as error:
            raise ListingRefusedError(Refusal.EXPIRED, str(error)) from error
        before = self._kept.get(opened.run)
        if before is not None and opened.author == before.opened.author:
            manifest = before.manifest  # a run's digest has one manifest
        elif not manifest:
            raise ManifestWantedError
        self._check_manifest(opened, manifest)
        if before is not None and opened.listing.sent_ms <= before.opened.listing.sent_ms:
            raise ListingRefusedError(Refusal.OLDER, "a listing of this run that is as new is here already")
        # After that: listings are public, and old ones that somebody sends again must not use up their key's rate.
        if not is_mirror(source) and not self._by_key.take(opened.author, now):
            raise ListingRefusedError(Refusal.TOO_OFTEN, "this key sends listings too often: once a minute is enough")
        if before is not None:
            source = self._better(before.source, source)
        if before is None or source != before.source:
            self._make_room(opened, source)
        provider = provider_of_subnet(source) if _is_bounded(source) else source
        kept = Kept(opened, manifest, source, provider, now if before is None else before.first_seen)
        self._kept[opened.run] = kept
        self.changes += 1
        return kept

    def expire(self, now: float) -> None:
        """Drop what has expired at `now`."""
        gone = [run for run, kept in self._kept.items() if kept.opened.is_over(now)]
        for run in gone:
            del self._kept[run]
        self.changes += bool(gone)

    def rows(self, now: float) -> tuple[Row, ...]:
        """The listings at `now`, those listed longest first."""
        self.expire(now)
        crowds = Counter(kept.source for kept in self._kept.values() if _is_bounded(kept.source))
        return tuple(
            Row(kept, max(1, crowds[kept.source])) for kept in sorted(self._kept.values(), key=lambda k: k.first_seen)
        )

    def manifest(self, run: Digest) -> bytes | None:
        """The manifest of a listed run; None for another one."""
        kept = self._kept.get(run)
        return None if kept is None else kept.manifest

    def _pay_signature(self, source: Subnet, now: float) -> None:
        bounded = _is_bounded(source)
        if bounded and not self._by_subnet.take(source, now):
            raise ListingRefusedError(Refusal.TOO_OFTEN, "too many listings come from this network; wait a minute")
        if not self._of_all.take("all", now):
            raise ListingRefusedError(Refusal.TOO_OFTEN, "too many listings come to this index; wait a minute")

    def _check_manifest(self, opened: OpenedListing, manifest: bytes) -> None:
        try:
            checked_manifest(opened, manifest)
        except RemoteProtocolError as error:
            raise ListingRefusedError(Refusal.INVALID, str(error)) from error

    def _better(self, before: Subnet, source: Subnet) -> Subnet:
        """The source under which a renewed listing is counted: a subnet before a mirror, and the one with fewer
        listings. Anybody may pass a listing on, from a crowded network too, and must not make its place worse."""
        if is_mirror(source) or is_mirror(before):
            return before if is_mirror(source) else source
        counts = Counter(kept.source for kept in self._kept.values())
        return source if counts[source] + 1 < counts[before] else before

    def _make_room(self, opened: OpenedListing, source: Subnet) -> None:
        """Raise unless there is room for one more listing of this key and source; make some where it is full."""
        limits, others = self._limits, [kept for run, kept in self._kept.items() if run != opened.run]
        if sum(kept.opened.author == opened.author for kept in others) >= limits.per_key:
            raise ListingRefusedError(Refusal.TOO_MANY, f"this key has {limits.per_key} listings here already")
        of_source = sum(kept.source == source for kept in others)
        if is_mirror(source):
            if of_source >= limits.per_mirror:
                raise ListingRefusedError(Refusal.TOO_MANY, "the listings of that index fill their part of this one")
        elif _is_bounded(source):
            if of_source >= limits.per_subnet:
                raise ListingRefusedError(
                    Refusal.TOO_MANY, f"the network that this comes from has {limits.per_subnet} listings here already"
                )
            provider = provider_of_subnet(source)
            if sum(kept.provider == provider for kept in others) >= limits.per_provider:
                raise ListingRefusedError(
                    Refusal.TOO_MANY, "the provider's network that this comes from has its part of this index already"
                )
        if len(others) < limits.total:
            return
        counts = Counter(kept.source for kept in others)
        most = max(counts.values())
        if of_source + 1 >= most:
            raise ListingRefusedError(Refusal.TOO_MANY, "this index is full, and others have fewer listings here")
        newest = max((kept for kept in others if counts[kept.source] == most), key=lambda kept: kept.first_seen)
        del self._kept[newest.opened.run]


def is_mirror(source: Subnet) -> bool:
    """Whether a source is a mirrored index."""
    return source.startswith(_MIRROR)


def mirror_source(url: str) -> Subnet:
    """The source of what a mirrored index gives."""
    return Subnet(_MIRROR + url)


def _is_bounded(source: Subnet) -> bool:
    """Whether a source is a subnet with limits of its own."""
    return source != HERE and not is_mirror(source)
