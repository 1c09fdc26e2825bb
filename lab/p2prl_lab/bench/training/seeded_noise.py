"""Sampling noise of several seeds side by side, each from its own stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor


def seeded_uniforms(seeds: Sequence[int], *purpose: int) -> Callable[[tuple[int, ...]], Tensor]:
    """Numbers within [0, 1) for `stacked_sampling.sample`, fixed by each seed and the purpose.

    The first dimension of the requested size is divided among the seeds in order. Each seed has its own stream, so it
    gives the same numbers alone and with others.
    """
    generators = [
        torch.Generator().manual_seed(int(np.random.SeedSequence([seed, *purpose]).generate_state(1)[0]))
        for seed in seeds
    ]

    def draw(size: tuple[int, ...]) -> Tensor:
        own = (size[0] // len(generators), *size[1:])
        return torch.cat([torch.rand(own, generator=generator) for generator in generators])

    return draw
