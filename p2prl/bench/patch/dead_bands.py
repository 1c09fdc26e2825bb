"""What a dead band saves: the versions of one training, published with bands of several widths.

Training is what it was, whatever is published: so one chain of versions tells what every band would have sent. What a
band does to training itself is `p2prl bench staleness`'s to say (`+band`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from p2prl.bench.patch.compared_codecs import PRODUCT, codecs, sent_bytes
from p2prl.bench.patch.weight_updates import Chain
from p2prl.patches.dead_band import hold_back, widest_band_ulp
from p2prl.patches.kernels import NUMPY_KERNELS
from p2prl.patches.words import BF16, Words

_WINDOW = 16
"""The last so many versions are measured, at most half of them: before, few words have come to the edge of a band."""


@dataclass(frozen=True, kw_only=True)
class BandRow:
    """One chain of versions, published with one band: its last versions."""

    name: str
    """Of the updates."""
    versions: int
    """Published after the first."""
    measured: int
    """The last so many of them."""
    band_ulp: int
    """Of the chain's own word type."""
    changed_share: float
    """Mean share of words that a version changes."""
    held_share: float
    """Share of words that in the last version are not what training has, rounded."""
    patch_bytes: float
    """Mean size of a patch from the version before."""
    of_all: float
    """That over its size without a band."""
    merged_bytes: int
    """One patch over all measured versions."""


@dataclass(kw_only=True)
class _Press:
    """What a learner with one band has published."""

    chain: Chain
    band_ulp: int
    held: Words
    """Last published."""
    began: Words
    """Published last before the measured versions."""
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

    def row(self, training: Words, whole_bytes: float) -> BandRow:
        return BandRow(
            name=self.chain.name,
            versions=self.chain.count,
            measured=len(self.sizes),
            band_ulp=self.band_ulp,
            changed_share=self.changed / (len(training) * len(self.sizes)),
            held_share=float(np.mean(self.held != training)),
            patch_bytes=self.mean_bytes,
            of_all=self.mean_bytes / whole_bytes,
            merged_bytes=self._size(self.began, self.held),
        )

    @property
    def mean_bytes(self) -> float:
        return sum(self.sizes) / len(self.sizes)


def measure_bands(chain: Chain, bands: Sequence[int]) -> list[BandRow]:
    """A row for each band, counted in ulp of bf16 and at most a binade wide, in the order given.

    In a longer word type a band is as many times wider as the type has more words in a binade.
    """
    finer = widest_band_ulp(chain.word_type) // widest_band_ulp(BF16)
    first_measured = chain.count + 1 - max(1, min(_WINDOW, chain.count // 2))
    versions = iter(chain.versions)
    training = next(versions)
    presses = {band: _Press(chain=chain, band_ulp=band * finer, held=training, began=training) for band in {0, *bands}}
    for version, training in enumerate(versions, start=1):
        for press in presses.values():
            press.publish(training, measured=version >= first_measured)
    return [presses[band].row(training, presses[0].mean_bytes) for band in bands]


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
