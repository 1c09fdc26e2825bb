"""Rounding noise between a sampler and a scorer: the scale that a replay's deviations are measured against.

Two engines that compute one policy with other kernels, batch sizes or caches differ in every logit. Seen on models of
4 to 28 layers, the difference is normal over the vocabulary, and its standard deviation is

    roundoff · sqrt(1 + .15 · layers)    for each of the two engines, times the root mean square of the row's logits

where `roundoff` is the dtype's unit roundoff: each layer adds two rounded terms to the residual stream, so the variance
grows with the depth, and the head carries a relative error of the hidden state over to logits of any size. Rounding the
logits themselves, in a 16-bit head, adds .3 of a roundoff of each logit. So no absolute bound fits two models: with
logits of 6 and 18 the noise of bfloat16 differs threefold, and dividing by a temperature of .6 scales it by 1.7.

The row's logits are the scorer's own. Of the sampler's claims only the dtype counts, and it can only narrow the scale.

Engines also differ by more than roundoff says: kernels that accumulate in short types, logits rounded once more,
another order of sums. So each pair of engine classes has the noise that was measured (`noise_baselines`), up to the
widest that its dtype explains, and never below what roundoff alone explains.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from p2prl.errors import require

Floats = npt.NDArray[np.float64]

UNIT_ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Largest relative error of rounding a number, by dtype."""

VARIANCE_PER_LAYER = 0.15
"""In units of the variance that a model without layers has. Fitted to bfloat16: 1.8, 2.4 and 3.2 roundoffs between two
engines at 4, 12 and 28 layers."""

SLACK = 2.0
"""Scale used over scale expected. A row's noise exceeds the mean of its model by up to 1.5."""

LOGIT_FLOOR = 1e-3
"""Least band of a logit, whatever the dtype, and the only one of float32: two GPU architectures differ by up to this in
deep models, far more than the roundoff says, with TF32 switched off. It is the most noise that counts as honest, so it
has no slack on top: what a wider band paid for would be no honest engine's draw."""

WIDEST_ROUNDOFFS = 26.0
"""Widest band of a logit, in unit roundoffs of the shorter type: .1 logits in bfloat16, .8 of the distance between two
neighboring numbers near 18."""

WIDEST_DTYPE = "bfloat16"
"""The dtype with the largest roundoff: what its noise does not explain, no class of engines explains."""


@dataclass(frozen=True, slots=True)
class NoiseScale:
    """Standard deviation of the difference of one logit between two engines; honest work stays under it."""

    relative: float
    """Part of the root mean square of the row's logits."""
    floor: float
    """Least deviation, in logits."""

    def of_rows(self, sizes: Floats, temperature: float) -> Floats:
        """The deviation for each row, nats at the sampling temperature. `sizes` are at that temperature too."""
        return np.maximum(self.relative * sizes, self.floor / temperature)


def noise_scale(
    *, claimed_dtype: str, run_dtype: str, scorer_dtype: str, layers: int, measured: float | None = None
) -> NoiseScale:
    """The scale for a group whose volunteer claims to have sampled in `claimed_dtype`.

    A claim wider than the run's dtype, or an unknown one, counts as the run's. `measured` is the noise of the pair of
    classes in logits, with its safety margin; the widest that the dtype explains for None.
    """
    for dtype in (run_dtype, scorer_dtype):
        require("dtype", dtype, dtype in UNIT_ROUNDOFF, f"one of {', '.join(UNIT_ROUNDOFF)}")
    run = UNIT_ROUNDOFF[run_dtype]
    sampler, scorer = min(run, UNIT_ROUNDOFF.get(claimed_dtype, run)), UNIT_ROUNDOFF[scorer_dtype]
    expected = math.hypot(sampler, scorer) * math.sqrt(1.0 + VARIANCE_PER_LAYER * layers)
    widest = max(LOGIT_FLOOR, WIDEST_ROUNDOFFS * max(sampler, scorer))
    floor = widest if measured is None else min(widest, max(LOGIT_FLOOR, measured))
    return NoiseScale(SLACK * expected, floor)


def widest_scale(layers: int) -> NoiseScale:
    """The scale that any class of engines explains, whatever the dtype of the run."""
    return noise_scale(claimed_dtype=WIDEST_DTYPE, run_dtype=WIDEST_DTYPE, scorer_dtype=WIDEST_DTYPE, layers=layers)
