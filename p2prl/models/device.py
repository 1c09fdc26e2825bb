"""Device of a model, and its number of CPU threads."""

from __future__ import annotations

import torch

from p2prl.errors import ConfigError, MachineError
from p2prl.models.pretrained import best_device


def choose_device(name: str) -> torch.device:
    """The device of this name; `auto` takes CUDA, then MPS, then the CPU.

    `ConfigError` for a name torch does not know, `MachineError` for a device this machine does not have.
    """
    if name == "auto":
        return best_device()
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"{name!r} is not a device", remedy="Devices: auto, cuda, cuda:1, mps, cpu.") from error
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not present.get(device.type, False):
        raise MachineError(
            f"this machine has no usable {name} device", remedy="Omit --device to use the best available device."
        )
    return device


def use_threads(count: int) -> None:
    """Limit this process's CPU threads for tensor work; 0 leaves the choice to torch."""
    if count:
        torch.set_num_threads(count)
