"""Sampling engines by name: transformers, then those of installed packages.

The owner of a machine chooses its engine, never the run: the samples of every engine must replay with the scorer.
A package adds one through the entry-point group `p2prl.engines`.
"""

from __future__ import annotations

from typing import Protocol

import torch

from p2prl.models.run_model import RunModel
from p2prl.models.sampler_port import Sampler
from p2prl.plugins import Registry

DEFAULT_ENGINE = "transformers"


class SamplerBuilder(Protocol):
    """Makes a sampler for one run."""

    def __call__(self, run: RunModel, *, device: torch.device, dtype: str) -> Sampler:
        """A sampler for `run` that computes on `device` in `dtype`; it is given its first policy later.

        `dtype` is the one the run computes in: in another, an honest peer's tokens would not replay. `MachineError`
        when this machine cannot run it.
        """
        ...


ENGINES: Registry[SamplerBuilder] = Registry(
    "p2prl.engines", kind="engine", builtin={DEFAULT_ENGINE: "p2prl.models.transformers_sampler:build_sampler"}
)


def build_sampler(name: str, run: RunModel, *, device: torch.device, dtype: str) -> Sampler:
    """Build the sampler of engine `name` for one run. `ConfigError` when it is not installed."""
    return ENGINES.get(name)(run, device=device, dtype=dtype)
