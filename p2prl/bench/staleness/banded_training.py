"""Training whose samplers get what a learner with a dead band publishes: words of bf16, held back within the band.

The learner's own weights are those of `training`, and what is evaluated; only what samplers use differs. A band of 0
is rounding to bf16 alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from p2prl.bench.staleness.delay_laws import DelayLaw
from p2prl.bench.staleness.methods import Method
from p2prl.bench.staleness.stale_training import Training, TrainingPlan
from p2prl.bench.training.environments import Environment
from p2prl.patches.dead_band import hold_back
from p2prl.patches.words import BF16, Words


class BandedTraining(Training):
    """`Training` by a method with `+band`: the seeds of one batch, update by update, a version after each."""

    def __init__(
        self,
        subject: Environment,
        method: Method,
        law: DelayLaw,
        plan: TrainingPlan,
        seeds: Sequence[int],
        start_MW: Tensor,
    ) -> None:
        super().__init__(subject, method, law, plan, seeds, start_MW)
        self._band_ulp = int(method.additions["band"])
        self._words = _words_of(start_MW)
        """Last published, all seeds in one row: a word knows no neighbours."""
        self._history[0] = _weights_of(self._words, start_MW)

    def _publish(self, done: int) -> None:
        super()._publish(done)
        fresh = _words_of(self._history[done])
        hold_back(fresh, self._words, BF16, band_ulp=self._band_ulp)
        self._words = fresh
        self._history[done] = _weights_of(fresh, self._history[done])


def _words_of(weights_MW: Tensor) -> Words:
    """Weights rounded to bf16, as words, in one row."""
    words: Words = weights_MW.detach().flatten().to(torch.bfloat16).view(torch.int16).numpy().view(BF16.dtype)
    return words


def _weights_of(words: Words, like_MW: Tensor) -> Tensor:
    """The weights that words stand for, in the shape and type of others."""
    return torch.from_numpy(words.view("<i2")).view(torch.bfloat16).to(like_MW.dtype).view_as(like_MW)
