"""Published policies and their weights, kept for the whole staleness window so that any group can be replayed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from p2prl.errors import MachineError
from p2prl.net.storage.disk_blobs import DiskBlobStore
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import body_of, open_envelope
from p2prl.protocol.manifests import PolicyManifest, RunManifest

_CACHED_WEIGHTS = 4
"""Versions whose bytes stay in memory; one learner update reads two or three."""


@dataclass(frozen=True, slots=True)
class Published:
    """A policy the learner has signed."""

    manifest: PolicyManifest
    digest: Digest
    raw: bytes


def versions_kept(manifest: RunManifest) -> int:
    """Versions a learner keeps and serves: any group of the staleness window must be replayable."""
    return manifest.staleness_bound // manifest.publish_every + 2


class PublishedPolicies:
    """Policies by version."""

    def __init__(self, blobs: DiskBlobStore) -> None:
        self._blobs = blobs
        self._by_version: dict[int, Published] = {}
        self._first: Published | None = None
        self._weights: OrderedDict[int, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_version)

    @property
    def newest(self) -> Published | None:
        """The highest version."""
        return self._by_version[max(self._by_version)] if self._by_version else None

    def add(self, raw: bytes) -> Published:
        """Put a signed manifest on the shelf."""
        published = _read(raw)
        self._by_version[published.manifest.version] = published
        if published.manifest.version == 0:
            self._keep_first(published)
        return published

    def recall_first(self, raw: bytes) -> None:
        """Take up again what the run started from, though it has left the window."""
        self._keep_first(_read(raw))

    def words_of(self, version: int) -> tuple[Digest, Path] | None:
        """(digest, file) of a version's words, while they are on this disk. Those of the first version always are."""
        published = self._first if version == 0 else self._by_version.get(version)
        if published is None:
            return None
        state = Digest(published.manifest.weights_digest)
        path = self._blobs.path(state if version == 0 else published.manifest.weights.root)
        whole = path.exists() and path.stat().st_size == published.manifest.weights.size_bytes
        return (state, path) if whole else None

    def _keep_first(self, published: Published) -> None:
        """Newcomers may have the run's starting weights from elsewhere: patches lead on from there for ever."""
        self._first = published
        self._blobs.keep_as(published.manifest.weights.root, Digest(published.manifest.weights_digest))

    def sweep(self, introduced: Iterable[bytes], *, besides: Iterable[bytes]) -> None:
        """Free the disk of versions that are neither here nor `introduced` (envelopes): before a fresh network hears of
        any.

        A network process lets go only of versions it was told of: what an earlier one kept beyond the window would
        stay for ever. `besides` are roots of other blobs in the same directory that are needed.
        """
        kept = set(besides)
        if self._first is not None:
            kept.add(self._first.manifest.weights_digest)
        for manifest in (published.manifest for published in (*self.all(), *map(_read, introduced))):
            kept |= {manifest.weights.root, *(patch.blob.root for patch in manifest.patches)}
        self._blobs.keep_only(kept)

    def at(self, version: int) -> Published | None:
        """The policy of a version, if it is still kept."""
        return self._by_version.get(version)

    def all(self) -> list[Published]:
        """Every policy kept, the newest first."""
        return [self._by_version[version] for version in sorted(self._by_version, reverse=True)]

    def get(self, version: int, digest: bytes) -> Published | None:
        """The policy a group declares, if the learner published exactly that and still keeps it."""
        published = self._by_version.get(version)
        return published if published is not None and published.digest == digest else None

    def weights(self, version: int) -> bytes:
        """The weight bytes of a version on the shelf."""
        if version not in self._weights:
            path: Path = self._blobs.path(self._by_version[version].manifest.weights.root)
            try:
                self._weights[version] = path.read_bytes()
            except OSError as error:
                raise MachineError(
                    f"weights of version {version} are missing: {error}",
                    remedy="Do not delete files under the run's blobs directory while the learner runs.",
                ) from error
            if len(self._weights) > _CACHED_WEIGHTS:
                self._weights.popitem(last=False)
        self._weights.move_to_end(version)
        return self._weights[version]

    def drop_before_step(self, step: int) -> None:
        """Forget versions published before `step`: no group of theirs will be taken any more."""
        for version, published in list(self._by_version.items()):
            if published.manifest.step < step and published is not self.newest:
                del self._by_version[version]
                self._weights.pop(version, None)


def _read(raw: bytes) -> Published:
    opened = open_envelope(raw, now=None)
    return Published(body_of(opened, PolicyManifest), opened.digest, raw)
