"""Versions of a small model, and orders to rebuild them on a worker's disk."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from p2prl.net.process import control
from p2prl.net.storage.held_weights import read_weights
from p2prl.patches.encode import encode_patch
from p2prl.patches.kernels import NUMPY_KERNELS
from p2prl.patches.stream_format import segment_spans
from p2prl.patches.words import BF16
from p2prl.protocol.manifests import NO_BASE, BlobRef, blob_of
from tests.unit.rebuilding import CHUNK_BYTES, order_for, stored

WORDS = 3000


@dataclass
class Disk:
    """Versions 0..3 of a small model, and the patches between them."""

    folder: Path
    versions: list[NDArray[np.uint16]]

    def weights(self, version: int) -> bytes:
        return self.versions[version].tobytes()

    def patch(self, base: int, version: int) -> bytes:
        new = self.versions[version]
        old = np.zeros_like(new) if base < 0 else self.versions[base]
        pairs = [(old[s : s + n], new[s : s + n]) for s, n in segment_spans(len(new))]
        return b"".join(encode_patch(pairs, words=len(new), word_type=BF16, kernels=NUMPY_KERNELS))

    def order(self, *route: int) -> control.PatchesReady:
        """An order for a route from its first version, which is put on disk, over the others; −1 is a keyframe's empty
        base."""
        return self.order_from(None if route[0] < 0 else stored(self.folder, self.weights(route[0])), *route)

    def order_from(self, base: BlobRef | None, *route: int) -> control.PatchesReady:
        patches = [self.patch(a, b) for a, b in itertools.pairwise(route)]
        weights, version = self.weights(route[-1]), route[-1]
        return order_for(
            self.folder,
            weights,
            version=version,
            base=base,
            base_version=route[0] if patches else NO_BASE,
            patches=patches,
        )

    def roots(self, *versions: int) -> tuple[bytes, ...]:
        return tuple(blob_of(self.weights(version), CHUNK_BYTES).root for version in versions)

    def path(self, version: int) -> Path:
        return self.folder / self.roots(version)[0].hex()

    def held(self, version: int) -> bytes:
        """The weights of a version as its users read them."""
        return read_weights(self.path(version))


def versions_of(words: int) -> list[NDArray[np.uint16]]:
    rng = np.random.default_rng(3)
    made = [rng.integers(0, 1 << 16, words, dtype=np.uint16)]
    for _ in range(3):
        new = made[-1].copy()
        places = rng.integers(0, words, max(1, words // 50))
        new[places] += rng.integers(1, 4, len(places), dtype=np.uint16)
        made.append(new)
    return made
