"""Sensors: a card through a stand-in for NVML, batteries, memory; what is missing reads None and never raises."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from p2prl.controls.sensors import MachineSensors, NvmlCard, battery_percent, find_card, own_memory


class FakeNvml:
    """NVML with one card; `fails` names the calls it has no answer to."""

    class NVMLError(Exception):
        pass

    def __init__(self, *, fails: tuple[str, ...] = (), pids: tuple[int, ...] = ()) -> None:
        self._fails, self._pids = fails, pids

    def nvmlInit(self) -> None:  # noqa: N802 - the library's names
        pass

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def _answer(self, name: str, value: Any) -> Any:
        if name in self._fails:
            raise self.NVMLError
        return value

    def nvmlDeviceGetPowerUsage(self, card: int) -> int:  # noqa: N802
        return int(self._answer("power", 161_500))

    def nvmlDeviceGetTemperature(self, card: int, sensor: int) -> int:  # noqa: N802
        return int(self._answer("temperature", 68))

    def nvmlDeviceGetComputeRunningProcesses(self, card: int) -> Any:  # noqa: N802
        return self._answer("programs", [SimpleNamespace(pid=pid) for pid in self._pids])

    def nvmlSystemGetProcessName(self, pid: int) -> Any:  # noqa: N802
        return self._answer("name", b"/usr/bin/blender --render")


def test_a_card() -> None:
    card = NvmlCard(FakeNvml(pids=(os.getpid(), 7)), 1)
    assert (card.power_w(), card.temperature_c(), card.programs()) == (161.5, 68.0, ("blender",))
    readings = MachineSensors(engine_bytes=lambda: 42, card=card).read()
    assert (readings.power_w, readings.gpu_memory_bytes, readings.programs) == (161.5, 42, ("blender",))


def test_a_card_without_some_sensors() -> None:
    card = NvmlCard(FakeNvml(fails=("power", "programs", "temperature", "name"), pids=(7,)), 0)
    assert (card.power_w(), card.temperature_c(), card.programs()) == (None, None, None)
    assert NvmlCard(FakeNvml(fails=("name",), pids=(os.getpid(), 7)), 0).programs() == ("another program",)
    assert find_card("cpu") is None


@pytest.mark.parametrize(
    ("battery", "percent"),
    [
        (None, 101.0),
        (SimpleNamespace(percent=40, power_plugged=True), 101.0),
        (SimpleNamespace(percent=40, power_plugged=None), 101.0),
        (SimpleNamespace(percent=40, power_plugged=False), 40.0),
    ],
)
def test_batteries(monkeypatch: pytest.MonkeyPatch, battery: object, percent: float) -> None:
    monkeypatch.setattr(psutil, "sensors_battery", lambda: battery, raising=False)
    assert battery_percent() == percent


def test_a_battery_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden() -> None:
        raise PermissionError

    monkeypatch.setattr(psutil, "sensors_battery", hidden, raising=False)
    assert battery_percent() is None


def test_own_memory(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("VmRSS:\t  900 kB\nRssAnon:\t  300 kB\nRssFile:\t  600 kB\n")
    assert own_memory(status) == 300 * 1024
    assert own_memory(tmp_path / "none") is None


def test_every_limit_that_needs_a_sensor_has_a_sentence() -> None:
    sensors = MachineSensors()
    assert {"gpu.temp", "gpu.power", "gpu.memory", "idle", "yield"} <= set(sensors.missing())
    assert sensors.read().power_w is None
