"""Published policy versions, kept with their weights so that any group in the staleness window can be replayed.

The weights are in one chain (`p2prl.net.storage.weight_store`), which leads back to version 0 too: patches for
newcomers start from it. A run folder of an earlier program has a file for every version: they are read until they leave
the window, and that of version 0 to the end of the run.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Iterable
from pathlib import Path

from p2prl.errors import IntegrityError, MachineError, StaleWorkError
from p2prl.net.storage.chain_blobs import CHAIN_FOLDER
from p2prl.net.storage.chain_reader import ChainReader
from p2prl.net.storage.disk_blobs import DiskBlobStore
from p2prl.net.storage.weight_store import WeightStore
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import body_of, open_envelope
from p2prl.protocol.manifests import PolicyManifest, RunManifest
from p2prl.swarm.policies.catalog import PolicyVersion


def versions_kept(manifest: RunManifest) -> int:
    """Versions a learner keeps and serves: any group of the staleness window must be replayable."""
    return manifest.staleness_bound // manifest.publish_every + 2


class VersionWeights:
    """The weights of a version, which stay readable for as long as this object lives."""

    def __init__(self, published: PublishedPolicies, policy: PolicyVersion) -> None:
        self._published = published
        self.policy = policy
        """The version."""

    def open(self) -> memoryview:
        """The weights, mapped from disk; computed there first unless they have a file. From any thread."""
        return self._published.read(self.policy)


class PublishedPolicies:
    """Published versions inside the staleness window, and always version 0."""

    def __init__(self, blobs: DiskBlobStore) -> None:
        self._blobs = blobs
        self.chain = WeightStore(blobs.directory / CHAIN_FOLDER)
        """The weights of the versions."""
        self._in_use: weakref.WeakSet[VersionWeights] = weakref.WeakSet()
        self._by_version: dict[int, PolicyVersion] = {}
        self._first: PolicyVersion | None = None
        self._lost: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return len(self._by_version)

    @property
    def newest(self) -> PolicyVersion | None:
        """The highest version."""
        return self._by_version[max(self._by_version)] if self._by_version else None

    def add(self, raw: bytes) -> PolicyVersion:
        """Add a signed manifest."""
        policy = _read(raw)
        self._by_version[policy.manifest.version] = policy
        if policy.manifest.version == 0:
            self._keep_first(policy)
        return policy

    def restore_first(self, raw: bytes) -> None:
        """Remember version 0 after a restart, although it has left the window."""
        self._keep_first(_read(raw))

    @property
    def first(self) -> PolicyVersion | None:
        """Version 0, also after it has left the window."""
        return self._first

    def weights_file(self, version: int) -> tuple[Digest, Path] | None:
        """(weights digest, file) of a version; None when it has no file of its own. That of version 0 is never
        deleted."""
        policy = self._first if version == 0 else self._by_version.get(version)
        if policy is None:
            return None
        digest = Digest(policy.manifest.weights_digest)
        path = self._blobs.path(digest if version == 0 else policy.manifest.weights.root)
        complete = path.exists() and path.stat().st_size == policy.manifest.weights.size_bytes
        return (digest, path) if complete else None

    def _keep_first(self, policy: PolicyVersion) -> None:
        """Keep version 0, and its file if it has one: newcomers may have its weights, and patches start from it."""
        self._first = policy
        self._blobs.keep_as(policy.manifest.weights.root, Digest(policy.manifest.weights_digest))

    def sweep(self, announced: Iterable[bytes], *, besides: Iterable[bytes]) -> None:
        """Delete blobs of versions that are neither kept here nor `announced` (envelopes).

        Call it before announcing versions to a new network process: a network process deletes only versions it knows,
        so blobs that an earlier one kept beyond the window would never be deleted. `besides` are roots of other blobs
        in the same directory that are needed.
        """
        kept = set(besides)
        if self._first is not None:
            kept.add(self._first.manifest.weights_digest)
        for manifest in (policy.manifest for policy in (*self.all(), *map(_read, announced))):
            kept |= {manifest.weights.root, *(patch.blob.root for patch in manifest.patches)}
        self._blobs.keep_only(kept)

    def has(self, raw: bytes) -> bool:
        """Whether a signed manifest is one of these versions."""
        policy = _read(raw)
        return self.get(policy.manifest.version, policy.digest) is not None

    def at(self, version: int) -> PolicyVersion | None:
        """A version, if it is still in the window."""
        return self._by_version.get(version)

    def all(self) -> list[PolicyVersion]:
        """Every version in the window, the newest first."""
        return [self._by_version[version] for version in sorted(self._by_version, reverse=True)]

    def get(self, version: int, digest: bytes) -> PolicyVersion | None:
        """The policy a group declares, if the learner published it and it is still in the window."""
        policy = self._by_version.get(version)
        return policy if policy is not None and policy.digest == digest else None

    def weights(self, version: int) -> VersionWeights:
        """The weights of a version in the window."""
        weights = VersionWeights(self, self._by_version[version])
        self._in_use.add(weights)
        return weights

    def read(self, policy: PolicyVersion) -> memoryview:
        """The weights of a version, mapped from disk; they stay readable when their files are deleted."""
        version, root = policy.manifest.version, policy.manifest.weights.root
        try:
            if self.chain.holds(version, root):
                return self.chain.copy_of(version)
            with self._blobs.path(root).open("rb") as file:
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, IntegrityError, StaleWorkError) as error:
            raise MachineError(
                f"weights of version {version} are missing: {error}",
                remedy="Do not delete files under the run's blobs directory while the learner runs. If the disk damaged"
                " one, check the disk, delete that file and start the learner again: it forgets what cannot be read.",
            ) from error

    def note_lost(self) -> list[int]:
        """Versions whose weights are not on disk, after a start: with a damaged disk, or files that were deleted."""
        self._lost = frozenset(version for version, policy in self._by_version.items() if not self._is_on_disk(policy))
        return sorted(self._lost)

    def can_replay(self, version: int) -> bool:
        """Whether the weights of a version are there."""
        return version in self._by_version and version not in self._lost

    def _is_on_disk(self, policy: PolicyVersion) -> bool:
        version, weights = policy.manifest.version, policy.manifest.weights
        return self.chain.holds(version, weights.root) or self.weights_file(version) is not None

    def oldest_needed(self, kept: int) -> int:
        """The oldest version whose weights must stay, of which the network process serves the newest `kept`."""
        newest = self.newest
        least = [weights.policy.manifest.version for weights in self._in_use]
        return min([*least, *self._by_version, 0 if newest is None else newest.manifest.version - kept])

    def drop_before_step(self, step: int) -> None:
        """Drop versions published before `step`, never the newest: groups sampled with them are too stale."""
        for version, policy in list(self._by_version.items()):
            if policy.manifest.step < step and policy is not self.newest:
                del self._by_version[version]


def chained_weights(blobs: Path, manifest: PolicyManifest, scratch: Path | None = None) -> memoryview | None:
    """The weights of a version in the chain beside these blobs; None when it is not there. From any process.

    They are copied to the folder `scratch`, or beside the chain. `OSError` when they cannot be."""
    chain = ChainReader(blobs / CHAIN_FOLDER)
    if not chain.holds(manifest.version, manifest.weights.root):
        return None
    return chain.copy_of(manifest.version, scratch)


def _read(raw: bytes) -> PolicyVersion:
    opened = open_envelope(raw, now=None)
    return PolicyVersion(body_of(opened, PolicyManifest), raw, opened.digest)
