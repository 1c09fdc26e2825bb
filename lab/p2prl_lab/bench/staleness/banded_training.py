"""Training under staleness with a dead band: samplers get bf16 weights, updated only when they leave the band.

The learner's weights are those of `delayed_training` and are the ones evaluated; only the samplers' weights differ. A
band of 0 only rounds to bf16.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from p2prl.patches.dead_band import hold_back
from p2prl.patches.words import BF16, Words
from p2prl_lab.bench.staleness.delay_laws import DelayLaw
from p2prl_lab.bench.staleness.delayed_training import DelayedTraining
from p2prl_lab.bench.staleness.methods import Method
from p2prl_lab.bench.training.environments import Environment
from p2prl_lab.bench.training.training_plan import TrainingPlan

RESULT_VERSION = 1
"""Incremented when a change here or in `p2prl.patches.dead_band` affects figures of `+band`."""


class BandedTraining(DelayedTraining):
    """`DelayedTraining` by a method with `+band`; a version is published after each update."""

    def __init__(
        self,
        environment: Environment,
        method: Method,
        delay: DelayLaw,
        plan: TrainingPlan,
        seeds: Sequence[int],
        start_MW: Tensor,
    ) -> None:
        super().__init__(environment, method, delay, plan, seeds, start_MW)
        self._band_ulp = int(method.additions["band"])
        self._words = _words_of(start_MW)
        """Last published words, all seeds in one row, since each word is banded independently."""
        self._history[0] = _weights_of(self._words, start_MW)

    def _publish(self, done: int) -> None:
        super()._publish(done)
        fresh = _words_of(self._history[done])
        hold_back(fresh, self._words, BF16, band_ulp=self._band_ulp)
        self._words = fresh
        self._history[done] = _weights_of(fresh, self._history[done])


def _words_of(weights_MW: Tensor) -> Words:
    """Weights rounded to bf16, as machine words, in one row."""
    words: Words = weights_MW.detach().flatten().to(torch.bfloat16).view(torch.int16).numpy().view(BF16.dtype)
    return words


def _weights_of(words: Words, like_MW: Tensor) -> Tensor:
    """The weights of machine words, in the shape and type of others."""
    return torch.from_numpy(words.view("<i2")).view(torch.bfloat16).to(like_MW.dtype).view_as(like_MW)
