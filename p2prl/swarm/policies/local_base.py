"""Local base: weights the owner had on disk before it joined, as a start for patch routes.

A run often starts from a public model. A peer that has it on disk, or gets it faster from a hub than from volunteers,
holds the run's starting weights, and patches lead on from there. Weights are identified by the digest of all of them,
which manifests sign for every version and every patch's base: where they came from does not matter. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from p2prl.protocol.digests import Digest
from p2prl.protocol.manifests import NO_BASE
from p2prl.swarm.policies.catalog import PolicyCatalog

FIRST_VERSION = 0
"""The run's starting weights: the version a user means by naming a base model."""


class LocalBase:
    """The owner's weights, while routes may start from them."""

    def __init__(self, *, awaited: bool) -> None:
        self.awaited = awaited
        """Whether the owner is still looking. Downloads wait: a route from the base may cost a hundredth of the full
        weights."""
        self.digest: Digest | None = None
        """Digest of all the weights; None when there are none, or no longer."""
        self.corrupt = False
        """Whether a version could not be rebuilt from them: no further route starts there."""

    def replace(self, digest: Digest | None) -> None:
        """Set the weights the owner found, or none."""
        self.awaited, self.digest, self.corrupt = False, digest, False

    def versions(self, catalog: PolicyCatalog) -> set[int]:
        """Versions the weights may be, as starts of a route.

        Version 0 is among them until a signature contradicts: a head lists patches by version number only, and the
        manifest of a patch from version 0, which signs the digest of its base, is downloaded before the patch.
        """
        if self.digest is None or self.corrupt:
            return set()
        signed = set(_signed_digests(catalog))
        proven = {version for version, digest in signed if digest == self.digest}
        return proven if self._contradicts(signed) else proven | {FIRST_VERSION}

    def matches_run(self, catalog: PolicyCatalog) -> bool | None:
        """Whether the learner signed these weights as some version; None while no known signature tells."""
        signed = set(_signed_digests(catalog))
        if any(digest == self.digest for _, digest in signed):
            return True
        return False if self._contradicts(signed) else None

    def _contradicts(self, signed: set[tuple[int, bytes]]) -> bool:
        return any(version == FIRST_VERSION and digest != self.digest for version, digest in signed)


def _signed_digests(catalog: PolicyCatalog) -> Iterator[tuple[int, bytes]]:
    """(version, weights digest) pairs that known manifests sign, for versions and for the bases of patches."""
    for policy in catalog.newest_first():
        yield policy.manifest.version, policy.manifest.weights_digest
        for patch in policy.manifest.patches:
            if patch.base != NO_BASE:
                yield patch.base, patch.base_digest
