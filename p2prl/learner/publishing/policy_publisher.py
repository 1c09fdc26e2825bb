"""Publish the weights of a step as the next policy version: sign its manifest once, store weights and patches, send it.

A version is signed before it is sent and never again, so a learner that crashed publishes the same manifest.
"""

from __future__ import annotations

from collections.abc import Callable
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
from p2prl.patches.words import WORD_TYPES
from p2prl.protocol.manifests import PolicyManifest, blob_of, chunk_bytes_for


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

    def publish(self, model: Any, *, step: int) -> None:
        """Publish the weights as the next version, or resend the manifest signed for this step before a crash."""
        raw = self._storage.journal.policies.at_step(step) or self._sign(model, step)
        self._sender.send(raw)
        self.heads.send()

    def _sign(self, model: Any, step: int) -> bytes:
        published, blobs = self._storage.published, self._storage.blobs
        weights = memoryview(flatten(model, self._layout))
        changed = self._apply_dead_band(weights)
        ref = blob_of(weights, chunk_bytes_for(len(weights), pieces=self._chunk_pieces))
        blobs.add(ref, weights)
        newest = published.newest
        version = 0 if newest is None else newest.manifest.version + 1
        now = self._clock.now()
        if newest is not None:
            self.heads.note_interval(now - newest.manifest.created_ms / 1000)
        manifest = PolicyManifest(
            version=version,
            step=step,
            weights=ref,
            weights_digest=weights_digest(weights),
            previous=b"" if newest is None else newest.digest,
            beacon=self._random_bytes(32),
            created_ms=int(now * 1000),
            patches=make_patches(
                weights,
                self._layout.tensors[0].dtype,
                patch_bases(version, published),
                blobs,
                chunk_pieces=self._chunk_pieces,
            ),
        )
        raw = self._sender.sign(manifest)
        with self._storage.journal.transaction():
            self._storage.journal.policies.add(manifest.version, step, raw)
        published.add(raw)
        published.drop_before_step(self._storage.window_start(step))
        self._figures = {} if changed is None else self._cost(manifest, changed)
        return raw

    def _cost(self, manifest: PolicyManifest, changed: int) -> dict[str, float]:
        short = (patch.blob.size_bytes for patch in manifest.patches if patch.base == manifest.version - 1)
        return {
            "published/changed_share": changed / self._layout.parameters,
            "published/patch_bytes": float(next(short, manifest.weights.size_bytes)),
        }

    def _apply_dead_band(self, weights: memoryview) -> int | None:
        """Reset weights within the dead band to their last published values; returns how many changed.
        None without an earlier version. They are compared with the file on disk, so a learner that was killed publishes
        the same bits as one that was not. If that file is lost, all weights are published unchanged: an equally good
        policy with a larger patch.
        """
        newest = self._storage.published.newest
        path = None if newest is None else self._storage.blobs.path(newest.manifest.weights.root)
        if path is None or not path.exists():
            return None
        word_type = WORD_TYPES[self._layout.tensors[0].dtype]
        fresh = np.frombuffer(weights, dtype=word_type.dtype)
        last_published = np.memmap(path, dtype=word_type.dtype, mode="r", shape=fresh.shape)
        return hold_back(fresh, last_published, word_type, band_ulp=self._dead_band_ulp)
