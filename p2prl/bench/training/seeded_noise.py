"""Sampling noise for several seeds side by side, each with its own stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor


def seeded_uniforms(seeds: Sequence[int], *purpose: int) -> Callable[[tuple[int, ...]], Tensor]:
    """Numbers within [0, 1) for `decoder.sample`, fixed by each seed and the purpose.

    The first dimension of what is asked for is divided among the seeds in their order. How much noise the other seeds
    use up changes nothing, so a seed gives the same alone and in company.
    """
    generators = [
        torch.Generator().manual_seed(int(np.random.SeedSequence([seed, *purpose]).generate_state(1)[0]))
        for seed in seeds
    ]

    def draw(size: tuple[int, ...]) -> Tensor:
        own = (size[0] // len(generators), *size[1:])
        return torch.cat([torch.rand(own, generator=generator) for generator in generators])

    return draw
