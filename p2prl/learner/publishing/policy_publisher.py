"""Publish the weights of a step as the next policy version: copy them, write its files, sign it once, send it.

Training waits for the copy alone. Patches, hashes and files are made beside it by a stage of the publisher's own, one
version at a time: a newer copy waits until the older version is sent, so versions keep their order, none is skipped,
and the weights are in memory once. (Replacing the older one would make volunteers wait for a version that never comes,
and break the interval that the run manifest promises.)

A version is signed before it is sent and never again, so a learner that crashed publishes the same manifest.

A head is signed with every version, and again before it expires while there is no new one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch

from p2prl.clock import Clock
from p2prl.learner.learner_config import LearnerConfig
from p2prl.learner.published_policies import PublishedPolicies, versions_kept
from p2prl.learner.publishing.patch_choice import patch_bases
from p2prl.learner.publishing.version_files import VersionFiles, VersionJob, write_version
from p2prl.learner.signing_sender import SigningSender
from p2prl.learner.storage import LearnerStorage
from p2prl.learner.timing.stages import Stage
from p2prl.models.weights.host_memory import HostMemory
from p2prl.models.weights.layout import WeightLayout
from p2prl.net.storage.weight_store import WeightStore
from p2prl.patches.words import WORD_TYPES
from p2prl.protocol import limits
from p2prl.protocol.manifests import PolicyManifest
from p2prl.protocol.policy_head import PatchEdge, PolicyHead
from p2prl.protocol.work_slots import begins_beacon
from p2prl.swarm.policies.catalog import PolicyVersion

_EXPIRES_S = 900.0
"""How long a head stays valid: after a quarter of an hour a volunteer reports that the learner is silent."""

_RENEW_S = 120.0
"""Time after which a head is renewed without a new version: several reach every peer before the first expires."""

_FIRST_INTERVAL_S = 60.0
"""Assumed time between two versions until two are published."""

_MAX_INTERVAL_S = 3600.0
"""Longest interval announced: a run that was stopped overnight must not set a distant target time."""


class PolicyHeads:
    """Signs and sends heads of the published versions."""

    def __init__(self, published: PublishedPolicies, sender: SigningSender, clock: Clock) -> None:
        self._published = published
        self._sender = sender
        self._clock = clock
        self._interval_s = _FIRST_INTERVAL_S
        self._signed_at = -math.inf

    def note_interval(self, seconds: float) -> None:
        """Record the time between two versions: the next one is expected after the same time."""
        self._interval_s = min(_MAX_INTERVAL_S, max(0.0, seconds))

    def send(self) -> None:
        """Sign a head of the newest version and send it."""
        self._sender.send(self._sign())

    def renew(self) -> None:
        """Send a head again when the last one is `_RENEW_S` old."""
        if self._published.newest is not None and self._clock.now() - self._signed_at >= _RENEW_S:
            self.send()

    def current(self) -> list[bytes]:
        """A head signed now, for a network that has just started; none before the first version."""
        return [] if self._published.newest is None else [self._sign()]

    def _sign(self) -> bytes:
        newest = self._published.newest
        assert newest is not None
        self._signed_at = now = self._clock.now()
        kept = self._published.all()
        edges = [
            PatchEdge(policy.manifest.version, patch.base, patch.blob.size_bytes, policy.digest)
            for policy in kept
            for patch in policy.manifest.patches
        ]
        head = PolicyHead(
            version=newest.manifest.version,
            manifest=newest.digest,
            oldest=kept[-1].manifest.version,
            weight_bytes=newest.manifest.weights.size_bytes,
            edges=tuple(edges[: limits.MAX_HEAD_EDGES]),
            target_ms=newest.manifest.created_ms + int(1000 * self._interval_s),
            expires_ms=int((now + _EXPIRES_S) * 1000),
        )
        return self._sender.sign(head)


@dataclass(slots=True)
class _Writing:
    """The version in progress."""

    step: int
    share: float = 0.0
    """Of its segments that are encoded."""
    is_signed: bool = False
    """Whether its files are written, and its manifest is signed and sent."""

    def note_share(self, share: float) -> None:
        self.share = share


class WeightSource(Protocol):
    """Weights to publish."""

    @property
    def device(self) -> torch.device:
        """Where they are copied from."""
        ...

    def copy_weights(self, layout: WeightLayout, into: bytearray) -> bytearray:
        """Write them in layout order."""
        ...


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
        stage: Stage,
    ) -> None:
        """`random_bytes` draws beacons; `stage` runs what takes time."""
        self._storage = storage
        self._layout = layout
        self._sender = sender
        self._chunk_pieces = config.chunk_pieces
        self._dead_band_ulp = config.dead_band_ulp
        self._clock = clock
        self._random_bytes = random_bytes
        self._stage = stage
        self._writing = _Writing(step=0)
        self._copy: HostMemory | None = None
        """Memory of the copies, kept from one to the next."""
        self._figures: dict[str, float] = {}
        self.heads = PolicyHeads(storage.published, sender, clock)
        """Policy heads of the published versions."""

    @property
    def figures(self) -> dict[str, float]:
        """Download cost of the newest version from the one before (`docs/metrics.md`); empty at first."""
        return dict(self._figures)

    @property
    def busy(self) -> bool:
        """Whether a version is being written. The next one waits for it."""
        return self._stage.busy

    @property
    def written_share(self) -> float | None:
        """How much of the version in progress is encoded; None when there is none."""
        return self._writing.share if self.busy else None

    def resend(self, *, step: int) -> bool:
        """Send the manifest that was signed for this step before a crash; False when there is none."""
        raw = self._storage.journal.policies.at_step(step)
        if raw is not None:
            self._send(raw)
        return raw is not None

    def copy(self, weights: WeightSource) -> bytearray:
        """Copy the weights out of where they are trained, on the training stage: all that training waits for."""
        assert not self.busy, "a version in progress is written from this memory"
        if self._copy is None:
            self._copy = HostMemory(self._layout.size_bytes, weights.device)
        return weights.copy_weights(self._layout, self._copy.data)

    def begin(self, weights: bytearray, *, step: int) -> None:
        """Write, sign and send the weights of a step as the next version, beside everything else. `finish` goes on."""
        newest = self._storage.published.newest
        writing = self._writing = _Writing(step)
        version = 0 if newest is None else newest.manifest.version + 1
        job = VersionJob(
            version=version,
            word_type=WORD_TYPES[self._layout.tensors[0].dtype],
            bases=patch_bases(version, self._storage.published),
            blobs=self._storage.blobs,
            chain=self._storage.published.chain,
            chunk_pieces=self._chunk_pieces,
            band_ulp=self._dead_band_ulp,
            on_progress=writing.note_share,
        )
        self._stage.start(lambda: write_version(job, memoryview(weights)))

    def finish(self, *, wait: bool = False) -> int | None:
        """Go on with the version in progress as far as it is; with `wait`, to its end.

        Returns its number when it is sent: its files and its signature in the journal are durable then. A process that
        ends before the signature has lost this version; one that ends after it sends the same manifest again. The
        weights file is rewritten after that: until it is, the version is read from its redo records.
        """
        sent = None
        while results := self._stage.take(wait=wait):
            if self._writing.is_signed:
                continue
            (files,) = results
            raw = self._sign(files, step=self._writing.step)
            self._writing.is_signed = True
            oldest = self._oldest_needed()
            sent = self._announce(raw)
            self._stage.start(partial(_place, self._storage.published.chain, files, oldest))
        return sent

    def close(self) -> None:
        """Free the thread."""
        self._stage.close()

    def _sign(self, files: VersionFiles, *, step: int) -> bytes:
        """Sign a version whose files are written, once: the journal has it from then on."""
        newest = self._storage.published.newest
        now = self._clock.now()
        if newest is not None:
            self.heads.note_interval(now - newest.manifest.created_ms / 1000)
        manifest = PolicyManifest(
            version=files.version,
            step=step,
            weights=files.weights,
            weights_digest=files.digest,
            previous=b"" if newest is None else newest.digest,
            beacon=self._beacon(files.version, newest),
            created_ms=int(now * 1000),
            patches=files.patches,
        )
        raw = self._sender.sign(manifest)
        with self._storage.journal.transaction():
            self._storage.journal.policies.add(manifest.version, step, raw)
        self._figures = {} if files.changed is None else self._cost(manifest, files.changed)
        return raw

    def _beacon(self, version: int, newest: PolicyVersion | None) -> bytes:
        if newest is None or begins_beacon(version):
            return self._random_bytes(32)
        return newest.manifest.beacon

    def _announce(self, raw: bytes) -> int:
        published = self._storage.published
        policy = published.add(raw)
        published.drop_before_step(self._storage.window_start(policy.manifest.step))
        self._send(raw)
        return policy.manifest.version

    def _oldest_needed(self) -> int:
        """The network process serves as many versions as it keeps; one more covers the time until it forgets one."""
        return self._storage.published.oldest_needed(versions_kept(self._storage.manifest) + 1)

    def _send(self, raw: bytes) -> None:
        self._sender.send(raw)
        self.heads.send()

    def _cost(self, manifest: PolicyManifest, changed: int) -> dict[str, float]:
        short = (patch.blob.size_bytes for patch in manifest.patches if patch.base == manifest.version - 1)
        return {
            "published/changed_share": changed / self._layout.parameters,
            "published/patch_bytes": float(next(short, manifest.weights.size_bytes)),
        }


def _place(chain: WeightStore, files: VersionFiles, oldest: int) -> None:
    """Write a signed version over the weights file, and forget versions nobody needs. Version 0 stays: patches for
    newcomers start from it."""
    if files.staged:
        chain.commit()
    chain.retain(oldest, besides=0)
