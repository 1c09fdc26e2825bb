"""Device of a model, its free memory and number of CPU threads, and whether what it computes repeats to the bit.

Shortcuts that round products to fewer bits than the dtype has are off in every engine and scorer. TF32 keeps 10 bits
of each factor: a hundred times the noise of float32, and not what the dtype of an engine class means. Sums of 16-bit
products are kept in float32, whose order of adding alone is noise enough.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

import psutil
import torch

from p2prl.errors import ConfigError, DeviceFailedError, MachineError
from p2prl.models.hardware.card_names import card_named
from p2prl.models.hardware.failures import first_line
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
    """The device of this name, or the card that is called so; `auto` takes CUDA, then MPS, then the CPU.

    `ConfigError` for a name that neither torch nor a card knows, `MachineError` for a device this machine does not
    have.
    """
    if name == "auto":
        return best_device()
    try:
        device = torch.device(name)
    except RuntimeError as error:
        several = "," in name
        if cards := {f"cuda:{place}": card for place, card in enumerate(card_list())}:
            return torch.device(card_named(name, cards))
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


def card_list() -> list[str]:
    """Names of the CUDA cards, in torch's order."""
    return [torch.cuda.get_device_name(place) for place in range(torch.cuda.device_count())]


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


def use_exact_arithmetic() -> None:
    """Compute in the full precision of each dtype, in this process, on every device."""
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


_CGROUP_FILES = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current"), "inactive_file"),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
        "total_inactive_file",
    ),
)
"""Limit and use of a container's memory, which the machine's free memory does not show, and the part of its use that
caches files: in the `memory.stat` beside them, given back when programs need it."""


def free_memory(device: torch.device) -> int:
    """Bytes that a program may still allocate on this device. MPS shares the machine's memory."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    return min(int(psutil.virtual_memory().available), *(container_room(*files) for files in _CGROUP_FILES))


def container_room(limit: Path, used: Path, cached: str) -> int:
    """Bytes left in a container; more than any machine has where there is no limit."""
    unlimited = 1 << 62
    try:
        most = limit.read_text().strip()
        if not most.isdecimal():
            return unlimited
        return max(0, int(most) - int(used.read_text()) + _statistic(limit.with_name("memory.stat"), cached))
    except OSError:
        return unlimited


def _statistic(path: Path, name: str) -> int:
    """The number after `name` in a file of names and numbers; 0 without one."""
    lines = path.read_text().splitlines() if path.exists() else []
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)
