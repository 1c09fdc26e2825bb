"""Publish the weights of a step as the next policy version: sign its manifest once, store weights and patches, send it.

A version is signed before it is sent and never again, so a learner that crashed publishes the same manifest. Its files
are written by a job that the training thread runs, because it reads the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from p2prl.clock import Clock
from p2prl.learner.learner_config import LearnerConfig
from p2prl.learner.publishing.patch_publishing import make_patches, patch_bases
from p2prl.learner.publishing.policy_heads import PolicyHeads
from p2prl.learner.signing_sender import SigningSender
from p2prl.learner.storage import LearnerStorage
from p2prl.models.weight_layout import WeightLayout, flatten, weights_digest
from p2prl.patches.dead_band import hold_back
from p2prl.patches.words import WORD_TYPES, WordType
from p2prl.protocol.digests import Digest
from p2prl.protocol.manifests import BlobRef, Patch, PolicyManifest, blob_of, chunk_bytes_for


@dataclass(frozen=True, slots=True)
class VersionFiles:
    """The files of a version that is not signed yet."""

    version: int
    weights: BlobRef
    digest: Digest
    patches: tuple[Patch, ...]
    changed: int | None
    """Weights that differ from the version before; None for the first."""


class PolicyPublisher:
    """Signs and sends versions, and keeps their heads fresh."""

    def __init__(
        self,
        *,
        storage: LearnerStorage,
        layout: WeightLayout,
        sender: SigningSender,
        config: LearnerConfig,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        """`random_bytes` draws each version's beacon."""
        self._storage = storage
        self._layout = layout
        self._sender = sender
        self._chunk_pieces = config.chunk_pieces
        self._dead_band_ulp = config.dead_band_ulp
        self._clock = clock
        self._random_bytes = random_bytes
        self._figures: dict[str, float] = {}
        self.heads = PolicyHeads(storage.published, sender, clock)
        """Policy heads of the published versions."""

    @property
    def figures(self) -> dict[str, float]:
        """Download cost of the newest version from the one before (`docs/metrics.md`); empty at first."""
        return dict(self._figures)

    def resend(self, *, step: int) -> bool:
        """Send the manifest that was signed for this step before a crash; False when there is none."""
        raw = self._storage.journal.policies.at_step(step)
        if raw is not None:
            self._send(raw)
        return raw is not None

    def writer(self) -> Callable[[Any], VersionFiles]:
        """The job that writes the files of the next version from a model. It touches nothing but files."""
        published, blobs, layout = self._storage.published, self._storage.blobs, self._layout
        newest = published.newest
        version = 0 if newest is None else newest.manifest.version + 1
        last = None if newest is None else blobs.path(newest.manifest.weights.root)
        band_ulp, chunk_pieces, dtype = self._dead_band_ulp, self._chunk_pieces, layout.tensors[0].dtype
        bases = patch_bases(version, published)

        def write(model: Any) -> VersionFiles:
            weights = memoryview(flatten(model, layout))
            changed = _apply_dead_band(weights, last, WORD_TYPES[dtype], band_ulp=band_ulp)
            ref = blob_of(weights, chunk_bytes_for(len(weights), pieces=chunk_pieces))
            blobs.add(ref, weights)
            patches = make_patches(weights, dtype, bases, blobs, chunk_pieces=chunk_pieces)
            return VersionFiles(version, ref, weights_digest(weights), patches, changed)

        return write

    def publish(self, files: VersionFiles, *, step: int) -> None:
        """Sign and send the version whose files were written from the weights of this step."""
        published = self._storage.published
        newest = published.newest
        now = self._clock.now()
        if newest is not None:
            self.heads.note_interval(now - newest.manifest.created_ms / 1000)
        manifest = PolicyManifest(
            version=files.version,
            step=step,
            weights=files.weights,
            weights_digest=files.digest,
            previous=b"" if newest is None else newest.digest,
            beacon=self._random_bytes(32),
            created_ms=int(now * 1000),
            patches=files.patches,
        )
        raw = self._sender.sign(manifest)
        with self._storage.journal.transaction():
            self._storage.journal.policies.add(manifest.version, step, raw)
        published.add(raw)
        published.drop_before_step(self._storage.window_start(step))
        self._figures = {} if files.changed is None else self._cost(manifest, files.changed)
        self._send(raw)

    def _send(self, raw: bytes) -> None:
        self._sender.send(raw)
        self.heads.send()

    def _cost(self, manifest: PolicyManifest, changed: int) -> dict[str, float]:
        short = (patch.blob.size_bytes for patch in manifest.patches if patch.base == manifest.version - 1)
        return {
            "published/changed_share": changed / self._layout.parameters,
            "published/patch_bytes": float(next(short, manifest.weights.size_bytes)),
        }


def _apply_dead_band(weights: memoryview, last: Path | None, word_type: WordType, *, band_ulp: int) -> int | None:
    """Reset weights within the dead band to their last published values; returns how many changed.

    None without an earlier version. They are compared with the file on disk, so a learner that was killed publishes
    the same bits as one that was not. If that file is lost, all weights are published unchanged: an equally good
    policy with a larger patch.
    """
    if last is None or not last.exists():
        return None
    fresh = np.frombuffer(weights, dtype=word_type.dtype)
    last_published = np.memmap(last, dtype=word_type.dtype, mode="r", shape=fresh.shape)
    return hold_back(fresh, last_published, word_type, band_ulp=band_ulp)
