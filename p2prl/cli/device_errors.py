"""Errors of a machine that computes, each in one sentence: no memory left, a failed card, an update not repeatable."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from p2prl.config.machine_limits import MachineLimits
from p2prl.errors import ConfigError, DeviceFailedError, MachineError, P2PRLError


@contextmanager
def out_of_memory_explained(limits: MachineLimits) -> Iterator[None]:
    """Turn running out of memory in this block into one sentence; `limits` are the owner's.

    torch is imported only when an error needs it.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        from p2prl.models.hardware.failures import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        if limits.ram_gb:
            bound = f"the {limits.ram_gb:g} GB of {limits.source('ram')}"
            remedy = "Raise that limit, or sample less at once: join --slots 1."
        else:
            bound, remedy = "this machine's memory", "Close other programs, or sample less at once: join --slots 1."
        raise MachineError(f"the run needs more than {bound}", remedy=remedy) from error


@contextmanager
def device_failures_explained() -> Iterator[None]:
    """Turn a failure of the graphics card or its driver in this block into one sentence."""
    try:
        yield
    except P2PRLError:
        raise
    except Exception as error:
        from p2prl.models.hardware.failures import device_failure

        if not (reported := device_failure(error)):
            raise
        raise DeviceFailedError(
            f"the graphics card or its driver has failed: {reported}",
            remedy="Finished work is kept. Start again; if that fails too, restart the machine: some drivers need it "
            "after a sleep or an update. p2prl doctor tests the card, and --device cpu works meanwhile.",
        ) from error


@contextmanager
def unrepeatable_explained() -> Iterator[None]:
    """Turn an operation of this block that a learner's card cannot repeat exactly into one sentence."""
    try:
        yield
    except RuntimeError as error:
        from p2prl.models.hardware.device_choice import unrepeatable

        if not (refused := unrepeatable(error)):
            raise
        raise ConfigError(
            f"this run cannot be trained on this device, where every update must repeat to the bit: {refused}",
            remedy='Choose a loss or a model without this operation, or set device = "cpu" in run.toml. For a loss of '
            "your own, see docs/extending.md. If the reason is cuBLAS: unset CUBLAS_WORKSPACE_CONFIG.",
        ) from error
