"""What is published: the weights of a step as a signed version, once and for ever the same, and the head that says
which versions there are."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from p2prl.clock import Clock
from p2prl.learner.journal import Journal
from p2prl.learner.patch_making import bases_of, make_patches
from p2prl.learner.published_policies import PublishedPolicies
from p2prl.learner.signing_sender import SigningSender
from p2prl.models.weight_layout import WeightLayout, flatten, weights_digest
from p2prl.net.storage.disk_blobs import DiskBlobStore
from p2prl.patches.dead_band import hold_back
from p2prl.patches.words import WORD_TYPES
from p2prl.protocol import limits
from p2prl.protocol.manifests import PolicyManifest, blob_of, chunk_bytes_for
from p2prl.protocol.policy_head import PatchEdge, PolicyHead

_HEAD_LIFE_S = 900.0
"""How long a head stays fresh: a volunteer says after a quarter of an hour that it has heard nothing."""

_HEAD_AGAIN_S = 120.0
"""How often it is signed again without a new version: several reach everybody before the first expires."""

_FIRST_CADENCE_S = 60.0
"""Taken for the time between two versions until two are out."""

_LATEST_TARGET_S = 3600.0
"""A run that stood still overnight does not tell its volunteers to take their time."""


class PolicyPublisher:
    """Signs versions and puts them on the shelf."""

    def __init__(
        self,
        *,
        journal: Journal,
        blobs: DiskBlobStore,
        shelf: PublishedPolicies,
        layout: WeightLayout,
        voice: SigningSender,
        staleness_bound: int,
        chunk_pieces: int,
        dead_band_ulp: int,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._journal = journal
        self._blobs = blobs
        self._shelf = shelf
        self._layout = layout
        self._voice = voice
        self._staleness_bound = staleness_bound
        self._chunk_pieces = chunk_pieces
        self._dead_band_ulp = dead_band_ulp
        self._clock = clock
        self._random_bytes = random_bytes
        self._cadence_s = _FIRST_CADENCE_S
        self._head_at = -math.inf
        self._figures: dict[str, float] = {}

    @property
    def figures(self) -> dict[str, float]:
        """What the newest version costs whoever has the one before (`docs/metrics.md`); empty until one is signed."""
        return dict(self._figures)

    def publish(self, model: Any, *, step: int) -> None:
        """Sign the weights as the next version, or say again what was signed for this step before a crash."""
        raw = self._journal.policy_at(step) or self._sign(model, step)
        self._voice.send(raw)
        self._voice.send(self._head())

    def refresh(self) -> None:
        """Sign the head again when that is due."""
        if self._shelf.newest is not None and self._clock.now() - self._head_at >= _HEAD_AGAIN_S:
            self._voice.send(self._head())

    def head(self) -> list[bytes]:
        """The head as of now, for a network that has just started; none before the first version."""
        return [] if self._shelf.newest is None else [self._head()]

    def _head(self) -> bytes:
        newest = self._shelf.newest
        assert newest is not None
        self._head_at = now = self._clock.now()
        kept = self._shelf.all()
        edges = [
            PatchEdge(published.manifest.version, patch.base, patch.blob.size_bytes, published.digest)
            for published in kept
            for patch in published.manifest.patches
        ]
        head = PolicyHead(
            version=newest.manifest.version,
            manifest=newest.digest,
            oldest=kept[-1].manifest.version,
            weight_bytes=newest.manifest.weights.size_bytes,
            edges=tuple(edges[: limits.MAX_HEAD_EDGES]),
            target_ms=newest.manifest.created_ms + int(1000 * self._cadence_s),
            expires_ms=int((now + _HEAD_LIFE_S) * 1000),
        )
        return self._voice.sealed(head)

    def _sign(self, model: Any, step: int) -> bytes:
        weights = memoryview(flatten(model, self._layout))
        changed = self._hold_back(weights)
        ref = blob_of(weights, chunk_bytes_for(len(weights), pieces=self._chunk_pieces))
        self._blobs.add(ref, weights)
        newest = self._shelf.newest
        version = 0 if newest is None else newest.manifest.version + 1
        now = self._clock.now()
        if newest is not None:
            self._cadence_s = min(_LATEST_TARGET_S, max(0.0, now - newest.manifest.created_ms / 1000))
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
                bases_of(version, self._shelf),
                self._blobs,
                chunk_pieces=self._chunk_pieces,
            ),
        )
        raw = self._voice.sealed(manifest)
        with self._journal.transaction():
            self._journal.add_policy(manifest.version, step, raw)
        self._shelf.add(raw)
        self._shelf.drop_before_step(step - self._staleness_bound)
        self._figures = {} if changed is None else self._cost(manifest, changed)
        return raw

    def _cost(self, manifest: PolicyManifest, changed: int) -> dict[str, float]:
        short = (patch.blob.size_bytes for patch in manifest.patches if patch.base == manifest.version - 1)
        return {
            "published/changed_share": changed / self._layout.parameters,
            "published/patch_bytes": float(next(short, manifest.weights.size_bytes)),
        }

    def _hold_back(self, weights: memoryview) -> int | None:
        """Leave words within the dead band as they were last published; how many changed, None without a last version.

        Those last published are on disk, so a learner that was killed publishes the same bits as one that was not.
        Were that file lost, all words would be published as they are, which is as good a policy and a larger patch.
        """
        newest = self._shelf.newest
        path = None if newest is None else self._blobs.path(newest.manifest.weights.root)
        if path is None or not path.exists():
            return None
        word_type = WORD_TYPES[self._layout.tensors[0].dtype]
        fresh = np.frombuffer(weights, dtype=word_type.dtype)
        published = np.memmap(path, dtype=word_type.dtype, mode="r", shape=fresh.shape)
        return hold_back(fresh, published, word_type, band_ulp=self._dead_band_ulp)
