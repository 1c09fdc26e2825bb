"""An NVIDIA card's sensors through NVML: power, temperature, and the other programs on it.

The only file that imports `pynvml` (the extra `sensors`). A value that the driver does not tell reads None.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

BUSY_PERCENT = 20
"""A program that draws and takes this share of the card is a game or the like: a desktop and a browser take a few."""

_SAMPLES_US = 3_000_000
"""Age of the samples of utilization that count: the driver takes some each second."""


_NO_SAMPLES = 6
"""NVML_ERROR_NOT_FOUND: no program has used the card lately."""


class Card(Protocol):
    """What is read of an accelerator; each value None where it cannot be."""

    def power_w(self) -> float | None:
        """Watts, averaged by the driver."""
        ...

    def energy_j(self) -> float | None:
        """Joules since the driver was loaded."""
        ...

    def temperature_c(self) -> float | None:
        """Degrees of the chip."""
        ...

    def programs(self) -> tuple[str, ...] | None:
        """Names of other programs that compute on it."""
        ...

    def games(self) -> tuple[str, ...] | None:
        """Names of programs that draw with it, and take at least `BUSY_PERCENT` of it."""
        ...


class NvmlCard:
    """One NVIDIA card. The driver names processes as the whole machine counts them."""

    def __init__(
        self, library: Any, index: int, *, uuid: str = "", is_own: Callable[[int], bool] | None = None
    ) -> None:
        """The card of this id, or where that is not known of this number, which the driver counts by bus.

        `is_own` tells this worker's processes; by default those of its process group, where an engine's are.
        """
        self._nvml = library
        self._is_own = is_own or _in_own_group
        self._saw_own = False
        """Whether the driver counts processes as this system does."""
        library.nvmlInit()
        by_uuid = self._read(lambda: library.nvmlDeviceGetHandleByUUID(uuid)) if uuid else None
        self._card = library.nvmlDeviceGetHandleByIndex(index) if by_uuid is None else by_uuid

    def power_w(self) -> float | None:
        """See `Card`."""
        value: float | None = self._read(lambda: self._nvml.nvmlDeviceGetPowerUsage(self._card) / 1e3)
        return value

    def energy_j(self) -> float | None:
        """See `Card`. Cards before 2017 do not count it."""
        value: float | None = self._read(lambda: self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._card) / 1e3)
        return value

    def temperature_c(self) -> float | None:
        """See `Card`."""
        value: float | None = self._read(lambda: float(self._nvml.nvmlDeviceGetTemperature(self._card, 0)))
        return value

    def programs(self) -> tuple[str, ...] | None:
        """See `Card`. None while this worker is not seen itself: in a container, processes have other numbers
        outside, and the worker would give way to itself."""
        running = self._read(lambda: self._nvml.nvmlDeviceGetComputeRunningProcesses(self._card))
        if running is None:
            return None
        pids = {process.pid for process in running}
        others = {pid for pid in pids if not self._is_own(pid)}
        self._saw_own = self._saw_own or len(others) < len(pids)
        if others and not self._saw_own:
            return None
        return tuple(self._name(pid) for pid in sorted(others))

    def games(self) -> tuple[str, ...] | None:
        """See `Card`. A worker draws nothing, so none of them is its own."""
        drawing = self._read(lambda: self._nvml.nvmlDeviceGetGraphicsRunningProcesses(self._card))
        if drawing is None:
            return None
        pids = {process.pid for process in drawing}
        if not pids:
            return ()
        try:
            newest = self._nvml.nvmlDeviceGetProcessUtilization(self._card, 0)
        except self._nvml.NVMLError as error:
            return () if getattr(error, "value", None) == _NO_SAMPLES else None
        since = max((sample.timeStamp for sample in newest), default=0) - _SAMPLES_US
        busy = {
            sample.pid
            for sample in newest
            if sample.pid in pids and sample.timeStamp >= since and sample.smUtil >= BUSY_PERCENT
        }
        return tuple(self._name(pid) for pid in sorted(busy))

    def _name(self, pid: int) -> str:
        name = self._read(lambda: self._nvml.nvmlSystemGetProcessName(pid))
        if not name:
            return "another program"
        text = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
        shown = "".join(letter for letter in os.path.basename(text.split(" ")[0]) if letter.isprintable())
        return shown[:40] or "another program"

    def _read(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except self._nvml.NVMLError:
            return None


def _in_own_group(pid: int) -> bool:
    """Whether a process is of this one's group: a system call, which confinement leaves open, unlike `/proc`."""
    with suppress(OSError):
        return os.getpgid(pid) == os.getpgrp()
    return False


def find_card(device: str, uuid: str = "") -> NvmlCard | None:
    """The NVIDIA card of a torch device's name (`cuda`, `cuda:1`); None without one or without the library.

    CUDA counts the fastest card first, and hides those that `CUDA_VISIBLE_DEVICES` leaves out; NVML does neither. So
    `uuid`, as `GPU-…`, says which one it is.
    """
    kind, _, number = device.partition(":")
    if kind != "cuda":
        return None
    try:
        library = importlib.import_module("pynvml")
        return NvmlCard(library, int(number or 0), uuid=uuid)
    except Exception:  # noqa: BLE001 - whatever the library raises, the machine is used without its sensors
        return None
