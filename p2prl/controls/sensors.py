"""Sensors of this machine: batteries and memory by psutil, a card by NVML where its library is installed.

A sensor that is not there, or that confinement hides, reads None, and `missing` says why in a sentence.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import psutil

from p2prl.controls.rules import Readings

_NO_DESKTOP = "p2prl cannot see your keyboard, mouse or full-screen windows on this system"

_NO_CARD = "it needs an NVIDIA card and its library (pip install nvidia-ml-py)"


class Card(Protocol):
    """What is read of an accelerator; each value None where it cannot be."""

    def power_w(self) -> float | None: ...

    def temperature_c(self) -> float | None: ...

    def programs(self) -> tuple[str, ...] | None:
        """Names of other programs that compute on it."""
        ...


class NvmlCard:
    """One NVIDIA card, through NVML. The only file that imports `pynvml`."""

    def __init__(self, library: Any, index: int) -> None:
        self._nvml = library
        library.nvmlInit()
        self._card = library.nvmlDeviceGetHandleByIndex(index)

    def power_w(self) -> float | None:
        """Watts, averaged by the driver."""
        value: float | None = self._read(lambda: self._nvml.nvmlDeviceGetPowerUsage(self._card) / 1e3)
        return value

    def temperature_c(self) -> float | None:
        """Degrees of the chip."""
        value: float | None = self._read(lambda: float(self._nvml.nvmlDeviceGetTemperature(self._card, 0)))
        return value

    def programs(self) -> tuple[str, ...] | None:
        """See `Card`. None where the driver counts processes otherwise than this system, as in a container."""
        running = self._read(lambda: self._nvml.nvmlDeviceGetComputeRunningProcesses(self._card))
        if running is None:
            return None
        pids = {process.pid for process in running}
        if pids and os.getpid() not in pids and not Path("/proc/1/comm").exists():
            return None
        return tuple(self._name(pid) for pid in sorted(pids - {os.getpid()}))

    def _name(self, pid: int) -> str:
        name = self._read(lambda: self._nvml.nvmlSystemGetProcessName(pid))
        if not name:
            return "another program"
        text = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
        return os.path.basename(text.split(" ")[0])[:40] or "another program"

    def _read(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except self._nvml.NVMLError:
            return None


def find_card(device: str) -> NvmlCard | None:
    """The NVIDIA card of a torch device's name (`cuda`, `cuda:1`); None without one or without the library."""
    kind, _, number = device.partition(":")
    if kind != "cuda":
        return None
    try:
        library = importlib.import_module("pynvml")
        return NvmlCard(library, int(number or 0))
    except Exception:  # noqa: BLE001 - whatever the library raises, the machine is used without its sensors
        return None


class MachineSensors:
    """Reads what there is."""

    def __init__(self, *, engine_bytes: Callable[[], int | None] = lambda: None, card: Card | None = None) -> None:
        """`engine_bytes` tells the memory that the engine holds on its device."""
        self._engine_bytes = engine_bytes
        self._card = card

    def use(self, *, engine_bytes: Callable[[], int | None], card: Card | None) -> None:
        """Read these from now on: they are known after the engine's library was imported."""
        self._engine_bytes, self._card = engine_bytes, card

    def read(self) -> Readings:
        """See `Sensors.read`."""
        card = self._card
        return Readings(
            gpu_memory_bytes=self._engine_bytes(),
            power_w=None if card is None else card.power_w(),
            temperature_c=None if card is None else card.temperature_c(),
            ram_bytes=own_memory(),
            programs=None if card is None else card.programs(),
            battery_percent=battery_percent(),
        )

    def missing(self) -> Mapping[str, str]:
        """See `Sensors.missing`."""
        return {
            "gpu.temp": _NO_CARD,
            "gpu.power": _NO_CARD,
            "gpu.memory": "the engine does not tell what it holds; the limit holds from the next start",
            "idle": _NO_DESKTOP,
            "yield": _NO_DESKTOP,
        }


def battery_percent() -> float | None:
    """Charge while the machine runs on its battery; 101 on mains or without a battery; None where it cannot be read."""
    try:
        battery = psutil.sensors_battery()
    except (OSError, AttributeError, ValueError, psutil.Error):
        return None
    return 101.0 if battery is None or battery.power_plugged is not False else float(battery.percent)


def own_memory(status: Path = Path("/proc/self/status")) -> int | None:
    """Memory that this process alone holds; mapped weights files, which the system may drop, do not count."""
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), None)
