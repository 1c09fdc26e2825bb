"""Which policy versions exist: manifests the learner signed, in order, and proof when it signed two for one version.

Versions only grow. A transfer that has begun is never abandoned for a newer version: on a link slower than the
learner's cadence that would be a transfer that never ends.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.errors import RemoteProtocolError
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened, body_of
from p2prl.protocol.manifests import PolicyManifest

MAX_WEIGHT_BYTES = 24 * 1024**3
"""Largest weights a manifest may announce: what `MAX_CHUNKS` chunks of `MAX_CHUNK_BYTES` can carry."""


@dataclass(frozen=True, slots=True)
class KnownPolicy:
    """A verified manifest, the envelope it came in and that envelope's digest (the policy's name)."""

    manifest: PolicyManifest
    raw: bytes
    digest: Digest


class EquivocationError(Exception):
    """Two different manifests of one version, both signed by the learner."""

    def __init__(self, first: bytes, second: bytes) -> None:
        super().__init__("the learner signed two different manifests for one version")
        self.first = first
        self.second = second


class PolicyBook:
    """Verified policy manifests by version."""

    def __init__(self, learner: bytes) -> None:
        self._learner = learner
        self._by_version: dict[int, KnownPolicy] = {}

    @property
    def newest(self) -> KnownPolicy | None:
        """The highest version known."""
        return self._by_version[max(self._by_version)] if self._by_version else None

    def get(self, version: int) -> KnownPolicy | None:
        """The manifest of a version, if known."""
        return self._by_version.get(version)

    def named(self, name: Digest) -> KnownPolicy | None:
        """The manifest whose envelope has this digest, if known."""
        return next((known for known in self._by_version.values() if known.digest == name), None)

    def uses(self, root: Digest) -> bool:
        """Whether a known version's weights are the blob of this root."""
        return any(known.manifest.weights.root == root for known in self._by_version.values())

    def admit(self, opened: Opened) -> KnownPolicy:
        """Take a manifest in. Raises `RemoteProtocolError` when it is not the learner's or breaks the chain of
        versions, `EquivocationError` when it contradicts one already here."""
        manifest = body_of(opened, PolicyManifest)
        if opened.author != self._learner:
            raise RemoteProtocolError("policy manifest signed by somebody who is not the learner")
        manifest.check(max_weight_bytes=MAX_WEIGHT_BYTES)
        known = KnownPolicy(manifest, opened.raw, opened.digest)
        present = self._by_version.get(manifest.version)
        if present is not None and present.digest != known.digest:
            raise EquivocationError(present.raw, known.raw)
        before = self._by_version.get(manifest.version - 1)
        after = self._by_version.get(manifest.version + 1)
        if before is not None and manifest.previous != before.digest:
            raise EquivocationError(before.raw, known.raw)
        if after is not None and after.manifest.previous != known.digest:
            raise EquivocationError(known.raw, after.raw)
        self._by_version[manifest.version] = known
        return known

    def forget_before(self, version: int) -> list[KnownPolicy]:
        """Drop manifests older than `version`; returns them so that their blobs can go too."""
        old = [known for v, known in self._by_version.items() if v < version]
        for known in old:
            del self._by_version[known.manifest.version]
        return old
