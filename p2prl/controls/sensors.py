"""Sensors of this machine: batteries by psutil, memory by the kernel, a card by NVML, the desktop by its watcher.

A sensor that is not there, or that confinement hides, reads None, and `missing` says why in a sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import psutil

from p2prl.controls.desktop_process import Desktop
from p2prl.controls.energy import CARD, EnergyCounter
from p2prl.controls.nvidia_sensors import Card
from p2prl.controls.rapl_sensor import RaplSensor
from p2prl.controls.rules import Readings
from p2prl.installation import install_command

NO_ENGINE = "an engine on the CPU counts as ram; on a card, the limit holds from the next start"


class DesktopSensor(Protocol):
    """What is read of keyboard, mouse and screen."""

    def read(self) -> Desktop:
        """The newest reading, without waiting."""
        ...


class ProgramSensor(Protocol):
    """What is read of other programs."""

    def read(self, names: tuple[str, ...]) -> tuple[str, ...] | None:
        """Those of the names that run, without waiting; None where it does not tell."""
        ...


class MachineSensors:
    """Reads what there is."""

    def __init__(
        self,
        *,
        desktop: DesktopSensor | None = None,
        programs: ProgramSensor | None = None,
        processor: RaplSensor | None = None,
    ) -> None:
        """Until `use`, there is no engine."""
        self._desktop = desktop
        self._programs = programs
        self._processor = processor or RaplSensor()
        self._card: Card | None = None
        self._engine_bytes: Callable[[], int | None] = lambda: None
        self._others_bytes: Callable[[], int] = lambda: 0
        self._seen = Desktop(missing="nothing has asked for keyboard and screen yet")
        self._lacks_names = False

    def use(
        self, *, engine_bytes: Callable[[], int | None], card: Card | None, others_bytes: Callable[[], int] = lambda: 0
    ) -> None:
        """Read these from now on: they are known after the engine's library was imported.

        `engine_bytes` tells the memory that the engine holds on its device, `others_bytes` that of this worker's other
        processes.
        """
        self._engine_bytes, self._card, self._others_bytes = engine_bytes, card, others_bytes

    def read(self, *, desktop: bool, names: tuple[str, ...] = ()) -> Readings:
        """See `Sensors.read`."""
        card = self._card
        seen = self._desktop.read() if desktop and self._desktop is not None else Desktop()
        self._seen = seen
        own = own_memory()
        named = None if self._programs is None else self._programs.read(names)
        self._lacks_names = bool(names) and named is None
        return Readings(
            gpu_memory_bytes=self._engine_bytes(),
            power_w=None if card is None else card.power_w(),
            temperature_c=None if card is None else card.temperature_c(),
            ram_bytes=None if own is None else own + self._others_bytes(),
            idle_s=seen.idle_s,
            programs=None if card is None else card.programs(),
            named=named,
            game=_game(seen.full_screen, card.games() if card is not None and desktop else None),
            battery_percent=battery_percent(),
            energy=(*_card_energy(card), *self._processor.read()),
        )

    def missing(self) -> Mapping[str, str]:
        """See `Sensors.missing`."""
        no_card = f"it needs an NVIDIA card, and an extra: {install_command('sensors')}"
        desktop = "" if self._seen.pending else self._seen.missing or "this desktop does not tell it"
        programs = "" if self._card is not None or not desktop else f"{desktop}; for other programs, {no_card}"
        return {
            "gpu.temp": no_card,
            "gpu.power": no_card,
            "gpu.memory": NO_ENGINE,
            "ram": "this system does not tell a program's own memory; the limit holds from the next start",
            "idle": desktop,
            "yield": "the watcher of programs does not answer" if self._lacks_names else programs or desktop,
            "energy.price": f"{self._processor.missing}, and no card tells its own; for an NVIDIA card:"
            f" {install_command('sensors')}",
        }


def _card_energy(card: Card | None) -> tuple[EnergyCounter, ...]:
    joules = None if card is None else card.energy_j()
    return () if joules is None else (EnergyCounter(CARD, CARD, joules),)


def _game(full_screen: str | None, games: tuple[str, ...] | None) -> str | None:
    """A game by its window or by its use of the card; empty for none, None where neither is seen."""
    found = full_screen or ", ".join((games or ())[:3])
    return None if not found and full_screen is None and games is None else found


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
