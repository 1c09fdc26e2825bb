"""Which policy versions exist: manifests and heads the learner signed, and proof when two of them contradict.

Versions only grow. A transfer that has begun is never abandoned for a newer version: on a link slower than the
learner's cadence that would be a transfer that never ends.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from p2prl.errors import RemoteProtocolError, StaleWorkError
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened, body_of
from p2prl.protocol.manifests import BlobRef, PolicyManifest
from p2prl.protocol.policy_head import PolicyHead
from p2prl.swarm.policies.cheapest_route import RouteStep

MAX_WEIGHT_BYTES = 24 * 1024**3
"""Largest weights a manifest may announce: what `MAX_CHUNKS` chunks of `MAX_CHUNK_BYTES` can carry."""


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """A verified manifest, the envelope it came in and that envelope's digest (the policy's name)."""

    manifest: PolicyManifest
    raw: bytes
    digest: Digest


@dataclass(frozen=True, slots=True)
class SignedHead:
    """A verified head, the envelope it came in, that envelope's digest, and when it was signed."""

    head: PolicyHead
    raw: bytes
    digest: Digest
    sent_ms: int


class EquivocationError(Exception):
    """Two documents of the learner's that name different manifests for one version."""

    def __init__(self, first: bytes, second: bytes) -> None:
        super().__init__("the learner signed two different manifests for one version")
        self.first = first
        self.second = second


class PolicyCatalog:
    """Verified policy manifests by version."""

    def __init__(self, learner: bytes) -> None:
        self._learner = learner
        self._by_version: dict[int, PolicyVersion] = {}
        self.head: SignedHead | None = None
        """The newest head."""

    @property
    def newest(self) -> PolicyVersion | None:
        """The highest version known."""
        return self._by_version[max(self._by_version)] if self._by_version else None

    def get(self, version: int) -> PolicyVersion | None:
        """The manifest of a version, if known."""
        return self._by_version.get(version)

    def named(self, name: Digest) -> PolicyVersion | None:
        """The manifest whose envelope has this digest, if known."""
        return next((known for known in self._by_version.values() if known.digest == name), None)

    def known(self) -> list[PolicyVersion]:
        """Every version known, the newest first."""
        return sorted(self._by_version.values(), key=lambda known: -known.manifest.version)

    def ways(self) -> list[RouteStep]:
        """Every patch that the head or a known manifest lists."""
        listed = {
            (known.manifest.version, patch.base): RouteStep(
                known.manifest.version, patch.base, patch.blob.size_bytes, known.digest
            )
            for known in self._by_version.values()
            for patch in known.manifest.patches
        }
        for edge in self.head.head.edges if self.head is not None else ():
            way = RouteStep(edge.version, edge.base, edge.size_bytes, Digest(edge.manifest))
            listed.setdefault((edge.version, edge.base), way)
        return list(listed.values())

    def uses(self, root: Digest, *, besides: Digest | None = None) -> bool:
        """Whether the weights or a patch of a known version, other than the one named, are the blob of this root."""
        return any(root in roots_of(known.manifest) for known in self._by_version.values() if known.digest != besides)

    def admit(self, opened: Opened) -> PolicyVersion:
        """Take a manifest in. Raises `RemoteProtocolError` when it is not the learner's or breaks the chain of
        versions, `EquivocationError` when it contradicts one already here."""
        manifest = body_of(opened, PolicyManifest)
        if opened.author != self._learner:
            raise RemoteProtocolError("policy manifest signed by somebody who is not the learner")
        manifest.check(max_weight_bytes=MAX_WEIGHT_BYTES)
        known = PolicyVersion(manifest, opened.raw, opened.digest)
        present = self._by_version.get(manifest.version)
        if present is not None and present.digest != known.digest:
            raise EquivocationError(present.raw, known.raw)
        before = self._by_version.get(manifest.version - 1)
        after = self._by_version.get(manifest.version + 1)
        if before is not None and manifest.previous != before.digest:
            raise EquivocationError(before.raw, known.raw)
        if after is not None and after.manifest.previous != known.digest:
            raise EquivocationError(known.raw, after.raw)
        if self.head is not None and self._named_in(self.head.head, manifest.version) not in (None, known.digest):
            raise EquivocationError(self.head.raw, known.raw)
        self._by_version[manifest.version] = known
        return known

    def admit_head(self, opened: Opened, now: float) -> SignedHead:
        """Take a head in. Raises `RemoteProtocolError` when it is not the learner's, `StaleWorkError` when it has
        expired or is no newer than what is known here, `EquivocationError` when it contradicts a manifest or a head.

        The highest version known counts too, so that after a restart no older head is believed either.
        """
        head = body_of(opened, PolicyHead)
        if opened.author != self._learner:
            raise RemoteProtocolError("policy head signed by somebody who is not the learner")
        head.check(sent_ms=opened.sent_ms)
        known = SignedHead(head, opened.raw, opened.digest, opened.sent_ms)
        for policy in self._by_version.values():
            if self._named_in(head, policy.manifest.version) not in (None, policy.digest):
                raise EquivocationError(policy.raw, known.raw)
        before = self.head
        if before is not None and head.version == before.head.version and head.manifest != before.head.manifest:
            raise EquivocationError(before.raw, known.raw)
        newest = -1 if self.newest is None else self.newest.manifest.version
        lowest = (newest, 0) if before is None else max((newest, 0), (before.head.version, before.sent_ms + 1))
        if (head.version, opened.sent_ms) < lowest or head.expires_ms < now * 1000:
            raise StaleWorkError("policy head that has expired or is older than the one known")
        self.head = known
        return known

    @staticmethod
    def _named_in(head: PolicyHead, version: int) -> bytes | None:
        """Envelope digest of a version's manifest according to a head, if it says."""
        if head.version == version:
            return head.manifest
        return next((edge.manifest for edge in head.edges if edge.version == version), None)

    def forget_before(self, version: int, *, keep: Collection[Digest] = ()) -> list[PolicyVersion]:
        """Drop manifests older than `version` but those in `keep`; returns them so that their blobs can go too."""
        old = [known for v, known in self._by_version.items() if v < version and known.digest not in keep]
        for known in old:
            del self._by_version[known.manifest.version]
        return old


def blobs_of(manifest: PolicyManifest) -> tuple[BlobRef, ...]:
    """The blobs a manifest names: its weights, then its patches."""
    return (manifest.weights, *(patch.blob for patch in manifest.patches))


def roots_of(manifest: PolicyManifest) -> set[Digest]:
    """Their names."""
    return {ref.root for ref in blobs_of(manifest)}
