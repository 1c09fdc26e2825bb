"""Words a peer's owner had before it joined, and which versions the learner's signatures say they are. Pure.

A run often starts from a public model. Whoever has that on disk, or gets it faster from a hub than from volunteers,
holds the run's starting weights, and patches lead on from there. Words are known by the digest of all of them alone,
as manifests sign it for every version and for what every patch starts from: where they came from does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator

from p2prl.protocol.digests import Digest
from p2prl.protocol.manifests import NO_BASE
from p2prl.swarm.policies.catalog import PolicyCatalog

FIRST_VERSION = 0
"""The run's starting weights: what a person means who names a base."""


class LocalBase:
    """The owner's words, while they may be of use."""

    def __init__(self, *, awaited: bool) -> None:
        self.awaited = awaited
        """Whether the owner is still looking. ChunkDownloads waits: a route from there may cost a hundredth."""
        self.state: Digest | None = None
        """Digest of all the words; None when there are none, or no longer."""
        self.spoilt = False
        """Whether a version could not be rebuilt from them: no further way starts there."""

    def take(self, state: Digest | None) -> None:
        """The owner has looked."""
        self.awaited, self.state, self.spoilt = False, state, False

    def versions(self, book: PolicyCatalog) -> set[int]:
        """Versions a route may start from.

        The first one is among them until a signature says otherwise: a head lists ways by number alone, and the
        manifest of a way from there, which says what words it starts from, is fetched before anything else of it.
        """
        if self.state is None or self.spoilt:
            return set()
        signed = set(_signed_states(book))
        proven = {version for version, state in signed if state == self.state}
        return proven if self._contradicts(signed) else proven | {FIRST_VERSION}

    def fits(self, book: PolicyCatalog) -> bool | None:
        """Whether they are words of this run's; None while no signature tells."""
        signed = set(_signed_states(book))
        if any(state == self.state for _, state in signed):
            return True
        return False if self._contradicts(signed) else None

    def _contradicts(self, signed: set[tuple[int, bytes]]) -> bool:
        return any(version == FIRST_VERSION and state != self.state for version, state in signed)


def _signed_states(book: PolicyCatalog) -> Iterator[tuple[int, bytes]]:
    """(version, digest of its words) as known manifests say: of versions, and of what their patches start from."""
    for known in book.known():
        yield known.manifest.version, known.manifest.weights_digest
        for patch in known.manifest.patches:
            if patch.base != NO_BASE:
                yield patch.base, patch.base_digest
