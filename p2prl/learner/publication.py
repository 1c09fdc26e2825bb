"""What is published: the weights of a step as a signed version, once and for ever the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from p2prl.clock import Clock
from p2prl.learner.journal import Journal
from p2prl.learner.shelf import Shelf
from p2prl.learner.voice import Voice
from p2prl.models.layout import Layout, flatten, weights_digest
from p2prl.net.blobs import DiskBlobs
from p2prl.protocol.manifests import PolicyManifest, blob_of, chunk_bytes_for


class Publication:
    """Signs versions and puts them on the shelf."""

    def __init__(
        self,
        *,
        journal: Journal,
        blobs: DiskBlobs,
        shelf: Shelf,
        layout: Layout,
        voice: Voice,
        staleness_bound: int,
        chunk_pieces: int,
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
        self._clock = clock
        self._random_bytes = random_bytes

    def publish(self, model: Any, *, step: int) -> None:
        """Sign the weights as the next version, or say again what was signed for this step before a crash."""
        raw = self._journal.policy_at(step) or self._sign(model, step)
        self._voice.send(raw)

    def _sign(self, model: Any, step: int) -> bytes:
        weights = memoryview(flatten(model, self._layout))
        ref = blob_of(weights, chunk_bytes_for(len(weights), pieces=self._chunk_pieces))
        self._blobs.add(ref, weights)
        newest = self._shelf.newest
        manifest = PolicyManifest(
            version=0 if newest is None else newest.manifest.version + 1,
            step=step,
            weights=ref,
            state=weights_digest(weights),
            previous=b"" if newest is None else newest.digest,
            beacon=self._random_bytes(32),
            created_ms=int(self._clock.now() * 1000),
        )
        raw = self._voice.sealed(manifest)
        with self._journal.transaction():
            self._journal.add_policy(manifest.version, step, raw)
        self._shelf.add(raw)
        self._shelf.drop_before_step(step - self._staleness_bound)
        return raw
