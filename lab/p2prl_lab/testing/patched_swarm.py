"""A simulated swarm with patches: the weights change as a trained policy's do, and peers rebuild them.

`ProtocolSwarm` with real bf16 weights, real patches and policy heads. Members decode at once: computation takes no
virtual time.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from p2prl.errors import IntegrityError, RemoteProtocolError
from p2prl.patches.decode import apply_route
from p2prl.patches.encode import encode_patch
from p2prl.patches.kernels import NUMPY_KERNELS
from p2prl.patches.stream_format import MAGIC
from p2prl.patches.words import BF16, Words
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import envelope_digest
from p2prl.protocol.manifests import NO_BASE, BlobRef, Patch, PolicyManifest, blob_of
from p2prl.protocol.policy_head import PatchEdge, PolicyHead
from p2prl.swarm import signals
from p2prl.swarm.events import Event, PatchesReady, RunKnown
from p2prl_lab.bench.patch.simulated_training import bf16
from p2prl_lab.testing.protocol_swarm import Member, ProtocolSwarm

SPANS = (1, 4, 16, 64)

_CHANGED = 0.02
"""Share of weights that one update changes."""


class PatchedSwarm(ProtocolSwarm):
    """A run whose learner publishes patches."""

    def __init__(self, *arguments: Any, words: int = 20_000, **options: Any) -> None:
        super().__init__(*arguments, weight_bytes=words * BF16.word_bytes, **options)
        self._changes = np.random.default_rng(self.network.seed)
        self.versions: list[NDArray[np.uint16]] = [bf16(self._changes.normal(0.0, 0.02, words).astype(np.float32))]
        self.bases: dict[str, bytes | None] = {}
        """Local base by member name: weights, or None for a base that is missing."""
        self.refused: list[tuple[str, int]] = []
        """(member, version) of every route that failed to decode."""

    def advance(
        self,
        *,
        spoil: bool = False,
        outdated: bool = False,
        keyframe: bool = False,
        bridge: bool = False,
        unchanged: bool = False,
    ) -> PolicyManifest:
        """The learner publishes its next version with the patches due at it, and a policy head.

        `spoil` corrupts the patch from the previous version, as a buggy learner would.
        `outdated` writes all patches in the previous format's name. `bridge` adds the patch from version 0.
        `unchanged` leaves all words as they are.
        """
        version = len(self.published)
        if version:
            self.versions.append(self.versions[-1] if unchanged else self._moved(self.versions[-1]))
        new = self.versions[version]
        bases = [version - span for span in SPANS if version % span == 0 and version >= span]
        if bridge and 0 not in bases:
            bases.append(0)
        patches = [
            self._patch(base, self._moved(new) if spoil and base == version - 1 else new, outdated=outdated)
            for base in bases
        ]
        if keyframe:
            patches.append(self._patch(NO_BASE, new))
        manifest = self.publish(0, data=new.tobytes(), chunk_bytes=4096, patches=tuple(patches))
        self.say(self.head())
        return manifest

    def head(self, *, life_s: float = 900.0) -> PolicyHead:
        """The learner's current policy head."""
        raw, newest, _ = self.published[-1]
        edges = [
            PatchEdge(manifest.version, patch.base, patch.blob.size_bytes, envelope_digest(envelope))
            for envelope, manifest, _ in reversed(self.published)
            for patch in manifest.patches
        ]
        now_ms = int(self.network.now * 1000)
        return PolicyHead(
            version=newest.version,
            manifest=envelope_digest(raw),
            oldest=0,
            weight_bytes=newest.weights.size_bytes,
            edges=tuple(edges),
            target_ms=now_ms,
            expires_ms=now_ms + int(life_s * 1000),
        )

    def words_of(self, member: Member, version: int) -> bytes:
        """A member's weights of a version."""
        return member.store.whole(self.published[version][1].weights)

    def offer_base(self, member: Member, words: bytes | None) -> None:
        """Give a member these weights as its local base, or none, once the member knows the run."""
        state = None
        if words is not None:
            state = Digest(blake3(words).digest())
            member.store.lay(state, words)
        self.network.node(member.peer).order(signals.StartFrom(state or b""), self.network.now)
        self.network.wake(member.peer)

    def on_event(self, member: Member, event: Event) -> None:
        """Set the local base when the run is known, and rebuild when every patch of a route has arrived."""
        super().on_event(member, event)
        if isinstance(event, RunKnown) and member.name in self.bases:
            self.offer_base(member, self.bases[member.name])
        if isinstance(event, PatchesReady):
            ok = self._rebuild(member, event)
            self.network.node(member.peer).order(signals.VersionRebuilt(event.digest, ok), self.network.now)
            self.network.wake(member.peer)

    def _rebuild(self, member: Member, event: PatchesReady) -> bool:
        count = event.manifest.weights.size_bytes // BF16.word_bytes
        base = np.zeros(count, BF16.dtype)
        if event.base is not None:
            base = np.frombuffer(member.store.by_root(event.base), dtype=BF16.dtype)

        def old_words(start: int, length: int) -> Words:
            return base[start : start + length]

        streams = [(member.store.by_root(root),) for root in event.patches]
        try:
            chain = apply_route(streams, old_words, words=count, word_type=BF16, kernels=NUMPY_KERNELS)
            data = b"".join(segment.words.tobytes() for segment in chain)
        except (IntegrityError, RemoteProtocolError):
            data = b""
        if blake3(data).digest() != event.manifest.weights_digest:
            self.refused.append((member.name, event.manifest.version))
            return False
        member.store.add(event.manifest.weights, data)
        return True

    def _patch(self, base: int, new: NDArray[np.uint16], *, outdated: bool = False) -> Patch:
        old = np.zeros_like(new) if base == NO_BASE else self.versions[base]
        pieces = encode_patch([(old, new)], words=len(new), word_type=BF16, kernels=NUMPY_KERNELS)
        stream = b"".join(itertools.chain(pieces))
        if outdated:
            stream = b"p2prl-patch-1\n" + stream[len(MAGIC) :]
        ref: BlobRef = blob_of(stream, 4096)
        self.members[self._learner].store.add(ref, stream)
        return Patch(base, b"" if base == NO_BASE else blake3(old.tobytes()).digest(), ref)

    def _moved(self, old: NDArray[np.uint16]) -> NDArray[np.uint16]:
        new = old.copy()
        places = self._changes.random(len(new)) < _CHANGED
        new[places] += self._changes.integers(0, 2, int(places.sum()), dtype=np.uint16) * np.uint16(2) - np.uint16(1)
        return new
