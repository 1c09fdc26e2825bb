"""Device of a model, its number of CPU threads, and whether what it computes repeats to the bit."""

from __future__ import annotations

import os
import platform

import torch

from p2prl.errors import ConfigError, DeviceFailedError, MachineError
from p2prl.models.hardware.device_failure import first_line
from p2prl.protocol.limits import MAX_NAME_CHARS

_DEVICES = "Devices: auto, cuda, cuda:1, mps, cpu."

_REPEATS_ASKED = "torch.use_deterministic_algorithms(True)"
"""In every error by which torch refuses an operation because of `repeat_exactly`."""


def best_device() -> torch.device:
    """CUDA if there is any, else Apple's MPS, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def choose_device(name: str) -> torch.device:
    """The device of this name; `auto` takes CUDA, then MPS, then the CPU.

    `ConfigError` for a name torch does not know, `MachineError` for a device this machine does not have.
    """
    if name == "auto":
        return best_device()
    try:
        device = torch.device(name)
    except RuntimeError as error:
        several = "," in name
        remedy = "One device for each worker: start another one for the next." if several else _DEVICES
        raise ConfigError(f"{name!r} is not a device", remedy=remedy) from error
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not present.get(device.type, False):
        raise MachineError(
            f"this machine has no usable {name} device", remedy="Omit --device to use the best available device."
        )
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise MachineError(f"there is no {name}: this machine has {count}", remedy="They count from cuda:0.")
    return device


def open_device(name: str) -> torch.device:
    """`choose_device`, with this process prepared for a card: CUDA's driver opens a socket, which a confined process
    may not. `DeviceFailedError` when the card or its driver refuses."""
    device = choose_device(name)
    if device.type == "cuda":
        try:
            torch.zeros(1, device=device)
        except RuntimeError as error:
            raise DeviceFailedError(
                f"{device} could not be opened: {first_line(error)}",
                remedy="p2prl doctor tests the card, and --device cpu works meanwhile.",
            ) from error
    return device


def device_class(device: torch.device) -> str:
    """Name of a device in an engine class: of the GPU, or its type and the processor's architecture."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)[:MAX_NAME_CHARS]
    return f"{device.type} {platform.machine()}"[:MAX_NAME_CHARS]


def use_threads(count: int) -> None:
    """Limit this process's CPU threads for tensor work; 0 leaves the choice to torch."""
    if count:
        torch.set_num_threads(count)


def repeat_exactly(device: torch.device) -> None:
    """Let kernels give the same bits each time: on CUDA some add up in the order threads finish.

    A learner that replays updates after a crash needs it. On other devices kernels do so anyway. An operation that
    cannot raises: with warnings instead, torch would also take the backward pass of attention that does not repeat.
    """
    if device.type != "cuda":
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ.setdefault("FLASH_ATTENTION_DETERMINISTIC", "1")
    torch.use_deterministic_algorithms(True)
    # Filling them only costs time: nothing here reads uninitialized tensors.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def unrepeatable(error: BaseException) -> str:
    """Which operation torch refused because of `repeat_exactly`, and why; empty when this error is another."""
    if not isinstance(error, RuntimeError) or _REPEATS_ASKED not in str(error):
        return ""
    asked, _, refused = first_line(error).partition(". ")[0].partition(", but ")
    return refused if _REPEATS_ASKED in asked else asked  # cuBLAS's is the other way round
