"""Energy counters of the processor and its memory, as Linux shows them (RAPL), on Intel's and AMD's processors."""

from __future__ import annotations

from pathlib import Path

from p2prl.controls.energy import MEMORY, PROCESSOR, EnergyCounter

FOLDER = Path("/sys/class/powercap")

_ZONES = "intel-rapl:*"
"""AMD's too. `intel-rapl-mmio:*` counts the same packages once more."""

_MICRO = 1e-6


class RaplSensor:
    """Reads whole packages, and memory where it is counted beside them. `psys` takes in both, and is left out."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self.missing = ""
        """A sentence why nothing can be read; empty where something can."""
        self._zones: list[tuple[Path, str, float | None]] = []
        found = [(zone, part) for zone in sorted(folder.glob(_ZONES)) if (part := _part(zone))]
        denied = ""
        for zone, part in found:
            try:
                _number(zone / "energy_uj")
            except PermissionError:
                denied = denied or str(zone / "energy_uj")
                continue
            except (OSError, ValueError):
                continue
            try:
                span: float | None = _number(zone / "max_energy_range_uj") * _MICRO
            except (OSError, ValueError):
                span = None
            self._zones.append((zone, part, span))
        if self._zones:
            return
        if denied:
            self.missing = f"only root may read the processor's energy counter ({denied})"
        elif found:
            self.missing = f"the energy counters in {folder} give no numbers"
        else:
            self.missing = (
                f"this system shows no energy counter of its processor ({folder / 'intel-rapl:0'} is missing)"
            )

    def read(self) -> tuple[EnergyCounter, ...]:
        """All counters; one that has gone is left out."""
        counters = []
        for zone, part, span in self._zones:
            try:
                counters.append(EnergyCounter(zone.name, part, _number(zone / "energy_uj") * _MICRO, span))
            except (OSError, ValueError):
                continue
        return tuple(counters)


def _part(zone: Path) -> str:
    """What a zone counts; empty for a part of another one."""
    try:
        name = (zone / "name").read_text().strip()
    except OSError:
        return ""
    if name.startswith("package"):
        return PROCESSOR
    return MEMORY if name == "dram" else ""


def _number(path: Path) -> int:
    return int(path.read_text())
