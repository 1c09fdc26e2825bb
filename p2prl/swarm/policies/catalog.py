"""Catalog of policy versions: the manifests and heads the learner signed, and proof when two contradict each other."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from p2prl.errors import RemoteProtocolError, StaleWorkError
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened, body_of
from p2prl.protocol.manifests import BlobRef, PolicyManifest
from p2prl.protocol.policy_head import PatchEdge, PolicyHead


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """A verified manifest, its envelope, and the envelope's digest (the version's name)."""

    manifest: PolicyManifest
    raw: bytes
    digest: Digest


@dataclass(frozen=True, slots=True)
class SignedHead:
    """A verified policy head, its envelope, the envelope's digest, and when it was signed."""

    head: PolicyHead
    raw: bytes
    digest: Digest
    sent_ms: int


class LearnerFaultError(RemoteProtocolError):
    """A document that the learner signed and that its own run manifest does not allow."""


class EquivocationError(Exception):
    """Two documents signed by the learner that name different manifests for one version."""

    def __init__(self, first: bytes, second: bytes) -> None:
        super().__init__("the learner signed two different manifests for one version")
        self.first = first
        self.second = second


class PolicyCatalog:
    """Verified policy manifests by version, and the newest head."""

    def __init__(self, learner: bytes, weight_bytes: int) -> None:
        """`learner` is the public key that signs the run's versions, `weight_bytes` the size of each one's weights."""
        self._learner = learner
        self.weight_bytes = weight_bytes
        """Size of every version's weights."""
        self._by_version: dict[int, PolicyVersion] = {}
        self.head: SignedHead | None = None
        """The newest head."""

    @property
    def newest(self) -> PolicyVersion | None:
        """The highest version known."""
        return self._by_version[max(self._by_version)] if self._by_version else None

    def get(self, version: int) -> PolicyVersion | None:
        """A version by number, if known."""
        return self._by_version.get(version)

    def named(self, name: Digest) -> PolicyVersion | None:
        """A version by its manifest's envelope digest, if known."""
        return next((policy for policy in self._by_version.values() if policy.digest == name), None)

    def newest_first(self) -> list[PolicyVersion]:
        """Every known version, the newest first."""
        return sorted(self._by_version.values(), key=lambda policy: -policy.manifest.version)

    def newest_between(self, least: int, version: int) -> PolicyVersion | None:
        """The newest known version above `least` and below `version`."""
        between = [number for number in self._by_version if least < number < version]
        return self._by_version[max(between)] if between else None

    def missing_between(self, least: int, version: int) -> list[Digest]:
        """Names of the unknown versions above `least` and below `version` that the head or a manifest tells."""
        told = {edge.version: edge.manifest for edge in self.head.head.edges} if self.head is not None else {}
        told |= {policy.manifest.version - 1: policy.manifest.previous for policy in self._by_version.values()}
        return [
            Digest(told[number])
            for number in range(version - 1, least, -1)
            if number in told and number not in self._by_version
        ]

    def patches(self) -> list[PatchEdge]:
        """Every patch that a known manifest or the head lists."""
        listed = {
            (policy.manifest.version, patch.base): PatchEdge(
                policy.manifest.version, patch.base, patch.blob.size_bytes, policy.digest
            )
            for policy in self._by_version.values()
            for patch in policy.manifest.patches
        }
        for edge in self.head.head.edges if self.head is not None else ():
            listed.setdefault((edge.version, edge.base), edge)
        return list(listed.values())

    def uses(self, root: Digest, *, besides: Digest | None = None) -> bool:
        """Whether a blob is the weights or a patch of a known version other than `besides`."""
        return any(
            root in roots_of(policy.manifest) for policy in self._by_version.values() if policy.digest != besides
        )

    def admit(self, opened: Opened) -> PolicyVersion:
        """Add a manifest.

        Raises `RemoteProtocolError` when the learner did not sign it, `LearnerFaultError` when it did and the run does
        not allow it, `EquivocationError` when it contradicts a known manifest or head.
        """
        manifest = body_of(opened, PolicyManifest)
        if opened.author != self._learner:
            raise RemoteProtocolError("policy manifest not signed by the run's learner")
        try:
            manifest.check(weight_bytes=self.weight_bytes)
        except RemoteProtocolError as error:
            raise LearnerFaultError(str(error)) from error
        policy = PolicyVersion(manifest, opened.raw, opened.digest)
        present = self._by_version.get(manifest.version)
        if present is not None and present.digest != policy.digest:
            raise EquivocationError(present.raw, policy.raw)
        before = self._by_version.get(manifest.version - 1)
        after = self._by_version.get(manifest.version + 1)
        if before is not None and manifest.previous != before.digest:
            raise EquivocationError(before.raw, policy.raw)
        if after is not None and after.manifest.previous != policy.digest:
            raise EquivocationError(policy.raw, after.raw)
        if self.head is not None and _manifest_in(self.head.head, manifest.version) not in (None, policy.digest):
            raise EquivocationError(self.head.raw, policy.raw)
        self._by_version[manifest.version] = policy
        return policy

    def admit_head(self, opened: Opened, now: float) -> SignedHead:
        """Replace the head by a newer one.

        Raises `RemoteProtocolError` when the learner did not sign it, `LearnerFaultError` when the run does not allow
        it, `StaleWorkError` when it has expired or is no newer than what is known, `EquivocationError` when it
        contradicts a manifest or a head. The highest known version counts too, so that an older head is refused after
        a restart as well.
        """
        head = body_of(opened, PolicyHead)
        if opened.author != self._learner:
            raise RemoteProtocolError("policy head not signed by the run's learner")
        head.check(sent_ms=opened.sent_ms)
        if head.weight_bytes != self.weight_bytes:
            raise LearnerFaultError("policy head: its weights do not have the size of the run's model")
        new_head = SignedHead(head, opened.raw, opened.digest, opened.sent_ms)
        for policy in self._by_version.values():
            if _manifest_in(head, policy.manifest.version) not in (None, policy.digest):
                raise EquivocationError(policy.raw, new_head.raw)
        old_head = self.head
        if old_head is not None and head.version == old_head.head.version and head.manifest != old_head.head.manifest:
            raise EquivocationError(old_head.raw, new_head.raw)
        newest = -1 if self.newest is None else self.newest.manifest.version
        lowest = (newest, 0) if old_head is None else max((newest, 0), (old_head.head.version, old_head.sent_ms + 1))
        if (head.version, opened.sent_ms) < lowest or head.expires_ms < now * 1000:
            raise StaleWorkError("policy head that has expired or is older than the one known")
        self.head = new_head
        return new_head

    def forget_before(self, version: int, *, keep: Collection[Digest] = ()) -> list[PolicyVersion]:
        """Remove versions older than `version`, except those in `keep`; returns them so that their blobs can go too."""
        old = [policy for v, policy in self._by_version.items() if v < version and policy.digest not in keep]
        for policy in old:
            del self._by_version[policy.manifest.version]
        return old


def blobs_of(manifest: PolicyManifest) -> tuple[BlobRef, ...]:
    """The blobs a manifest names: its weights, then its patches."""
    return (manifest.weights, *(patch.blob for patch in manifest.patches))


def roots_of(manifest: PolicyManifest) -> set[Digest]:
    """Roots of the blobs a manifest names."""
    return {ref.root for ref in blobs_of(manifest)}


def _manifest_in(head: PolicyHead, version: int) -> bytes | None:
    """Envelope digest of a version's manifest according to a head, if it lists the version."""
    if head.version == version:
        return head.manifest
    return next((edge.manifest for edge in head.edges if edge.version == version), None)
