"""Sampling engines by name: transformers, vLLM, then those of installed packages.

The owner of a machine chooses its engine, never the run: the samples of every engine must replay with the scorer.
A package adds one through the entry-point group `p2prl.engines`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from p2prl.errors import ConfigError, MachineError
from p2prl.models.engines.engine_names import AUTO, DEFAULT_ENGINE, OFF_CUDA, VLLM, ChosenEngine, as_asked
from p2prl.models.engines.vllm.library import import_vllm
from p2prl.models.run_model import RunModel
from p2prl.models.sampler_port import Sampler
from p2prl.plugins import Registry


class SamplerBuilder(Protocol):
    """Makes a sampler for one run."""

    def __call__(self, run: RunModel, *, device: torch.device, dtype: str, memory_bytes: int | None = None) -> Sampler:
        """A sampler for `run` that computes on `device` in `dtype`; it is given its first policy later.

        `memory_bytes` is the most memory to use, weights included; None leaves the choice to the engine.

        `dtype` is the one the run computes in: in another, an honest peer's tokens would not replay. `MachineError`
        when this machine cannot run it.
        """
        ...


ENGINES: Registry[SamplerBuilder] = Registry(
    "p2prl.engines",
    kind="engine",
    builtin={
        DEFAULT_ENGINE: "p2prl.models.engines.transformers.sampler:build_sampler",
        VLLM: "p2prl.models.engines.vllm.sampler:build_sampler",
    },
)


def choose_engine(name: str, device: torch.device) -> ChosenEngine:
    """The engine that `name` or `AUTO` stands for on this device. `ConfigError` when it is not installed."""
    if name != AUTO:
        ENGINES.get(name)
        if name == VLLM:
            import_vllm()
        return as_asked(name)
    if device.type != "cuda":
        return OFF_CUDA
    try:
        import_vllm()
    except ConfigError:
        return ChosenEngine(DEFAULT_ENGINE, "as vLLM, the fastest on CUDA, is not installed")
    return ChosenEngine(VLLM, "as the fastest on CUDA", fallback=DEFAULT_ENGINE)


def build_sampler(
    engine: ChosenEngine,
    run: RunModel,
    *,
    device: torch.device,
    dtype: str,
    memory_bytes: int | None = None,
    on_notice: Callable[[str], None] | None = None,
) -> Sampler:
    """Build the sampler of an engine for one run, or that of its fallback, which `on_notice` gets a message about.

    `MachineError` when this machine cannot run the model.
    """
    try:
        return ENGINES.get(engine.name)(run, device=device, dtype=dtype, memory_bytes=memory_bytes)
    except MachineError as error:
        if not engine.fallback:
            raise
        if on_notice is not None:
            on_notice(f"{error}. Sampling with {engine.fallback} instead.")
    return ENGINES.get(engine.fallback)(run, device=device, dtype=dtype, memory_bytes=memory_bytes)
