"""Bytes saved by a dead band: the versions of one training run, published with bands of several widths.

Training does not depend on what is published, so one sequence of versions shows what each band would have sent. The
effect of a band on training is measured by `p2prl bench staleness` (`+band`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from p2prl.patches.dead_band import hold_back, widest_band_ulp
from p2prl.patches.kernels import NUMPY_KERNELS
from p2prl.patches.words import BF16, Words
from p2prl_lab.bench.patch.compared_codecs import PRODUCT, codecs, sent_bytes
from p2prl_lab.bench.patch.weight_updates import Chain

_WINDOW = 16
"""Last versions that are measured; at most half, because at first few words have reached the edge of a band."""


@dataclass(frozen=True, kw_only=True)
class BandRow:
    """The last versions of one training run, published with one band."""

    name: str
    """Name of the chain of updates."""
    versions: int
    """Versions published after the first."""
    measured: int
    """Number of last versions that are measured."""
    band_ulp: int
    """In ulp of the weights' own word type."""
    changed_share: float
    """Mean share of words that a version changes."""
    held_share: float
    """Share of the last version's words that differ from the rounded training weights."""
    patch_bytes: float
    """Mean size of a patch from the previous version."""
    of_all: float
    """`patch_bytes` over its value without a band."""
    merged_bytes: int
    """One patch over all measured versions."""


@dataclass(kw_only=True)
class _BandedLearner:
    """Publishes versions with one band and totals the patch sizes."""

    chain: Chain
    band_ulp: int
    held: Words
    """Words of the last published version."""
    began: Words
    """Words of the version before the measured ones."""
    changed: int = 0
    sizes: list[int] = field(default_factory=list)

    def publish(self, training: Words, *, measured: bool) -> None:
        fresh = training.copy()
        changed = hold_back(fresh, self.held, self.chain.word_type, band_ulp=self.band_ulp)
        if measured:
            self.changed += changed
            self.sizes.append(self._size(self.held, fresh))
        else:
            self.began = fresh
        self.held = fresh

    def _size(self, old: Words, new: Words) -> int:
        encode, _ = codecs(self.chain.word_type)[f"{PRODUCT} ({NUMPY_KERNELS.name})"]
        return sent_bytes(encode(old, new))

    def row(self, training: Words, full_bytes: float) -> BandRow:
        return BandRow(
            name=self.chain.name,
            versions=self.chain.count,
            measured=len(self.sizes),
            band_ulp=self.band_ulp,
            changed_share=self.changed / (len(training) * len(self.sizes)),
            held_share=float(np.mean(self.held != training)),
            patch_bytes=self.mean_bytes,
            of_all=self.mean_bytes / full_bytes,
            merged_bytes=self._size(self.began, self.held),
        )

    @property
    def mean_bytes(self) -> float:
        return sum(self.sizes) / len(self.sizes)


def measure_bands(chain: Chain, bands: Sequence[int]) -> list[BandRow]:
    """One row per band, in the order given; bands are in ulp of bf16, at most one binade wide.

    In a longer word type the band in ulp grows with the number of words per binade.
    """
    finer = widest_band_ulp(chain.word_type) // widest_band_ulp(BF16)
    first_measured = chain.count + 1 - max(1, min(_WINDOW, chain.count // 2))
    versions = iter(chain.versions)
    training = next(versions)
    learners = {
        band: _BandedLearner(chain=chain, band_ulp=band * finer, held=training, began=training) for band in {0, *bands}
    }
    for version, training in enumerate(versions, start=1):
        for learner in learners.values():
            learner.publish(training, measured=version >= first_measured)
    return [learners[band].row(training, learners[0].mean_bytes) for band in bands]


def bands_as_markdown(rows: Sequence[BandRow]) -> str:
    """The table."""
    lines = [
        "| updates | versions | band, ulp | changed | held back | bytes a patch | of all | all in one patch |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row.name} | {row.measured} of {row.versions} | {row.band_ulp} | {row.changed_share:.2%} "
        f"| {row.held_share:.1%} | {row.patch_bytes:,.0f} | {row.of_all:.3f} | {row.merged_bytes:,} |"
        for row in rows
    ]
    return "\n".join(lines)
