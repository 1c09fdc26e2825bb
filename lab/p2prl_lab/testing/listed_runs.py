"""Runs and their signed listings, for tests of indexes and of those who read them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import msgspec

from p2prl.index.run_facts import listing_of
from p2prl.protocol.digests import Digest, digest
from p2prl.protocol.envelope import NO_RUN, envelope_digest, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.join_link import JoinLink
from p2prl.protocol.listing import Listing, OpenedListing, State, open_listing, sign_listing
from p2prl.protocol.manifests import RunManifest
from p2prl_lab.testing.sample_ledgers import identity, manifest

NOW = 1_800_000_000.0
"""A time at which listings of these tests are signed."""


_identity = cache(identity)


@dataclass(frozen=True)
class ListedRun:
    """A run with its learner's key."""

    name: str = "chain-of-sums"
    owner: str = "learner"
    changes: tuple[tuple[str, Any], ...] = ()
    """Of the manifest."""

    @cached_property
    def learner(self) -> Identity:
        """Its key."""
        return _identity(self.owner)

    @cached_property
    def manifest(self) -> RunManifest:
        """What its learner signed when it was made."""
        return manifest(**{"name": self.name, "learner": self.learner.public_key, **dict(self.changes)})

    @cached_property
    def manifest_raw(self) -> bytes:
        """The manifest's envelope."""
        return seal(self.learner, self.manifest, run=NO_RUN, now=NOW - 3600)

    @cached_property
    def run(self) -> Digest:
        """Its identity."""
        return envelope_digest(self.manifest_raw)

    @cached_property
    def link(self) -> JoinLink:
        """A join link that names its learner by a name that nobody has."""
        return self.link_to("/dns4/learner.example/tcp/4001")

    def link_to(self, *addresses: str) -> JoinLink:
        """A join link that names its learner at these addresses."""
        return JoinLink(self.name, self.run, tuple(f"{each}/p2p/{self.learner.peer_id}" for each in addresses))

    def listing(
        self, *, now: float = NOW, state: State = "running", volunteers: int = 1, missing: int | None = 2, **claims: Any
    ) -> Listing:
        """What it claims; `claims` are put in place of what is so."""
        true = listing_of(self.manifest, self.link, state=state, volunteers=volunteers, missing=missing, now=now)
        return msgspec.structs.replace(true, **claims)

    def signed(self, *, by: Identity | None = None, **claims: Any) -> bytes:
        """The listing's bytes, signed by its learner or `by` somebody else."""
        return sign_listing(by or self.learner, self.listing(**claims))

    def opened(self, *, now: float = NOW, **claims: Any) -> OpenedListing:
        """The same as a reader has it."""
        return open_listing(self.signed(now=now, **claims), now=now)


def many_runs(count: int, *, owners: int = 0) -> list[ListedRun]:
    """Different runs, of `owners` keys in turns; of a key each without that number."""
    return [ListedRun(f"run-{number}", f"owner-{number % owners if owners else number}") for number in range(count)]


def subnet_name(number: int) -> str:
    """A /24 of its own for each number, in different provider networks."""
    first = digest("p2prl/test/subnet", number.to_bytes(4, "little"))
    return f"{first[0] % 200 + 10}.{first[1]}.{first[2]}.0/24"
