"""Sensors: batteries, memory, games by window or by card; what is missing reads None and never raises."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from p2prl.controls.desktop_process import Desktop
from p2prl.controls.energy import EnergyCounter
from p2prl.controls.rapl_sensor import RaplSensor
from p2prl.controls.sensors import MachineSensors, battery_percent, own_memory


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


class FakeCard:
    """A card with some games on it, and a desktop with a window in front."""

    def __init__(self, games: tuple[str, ...] | None) -> None:
        self._games = games

    def power_w(self) -> float | None:
        return 90.0

    def energy_j(self) -> float | None:
        return 7_200.0

    def temperature_c(self) -> float | None:
        return None

    def programs(self) -> tuple[str, ...] | None:
        return ("blender",)

    def games(self) -> tuple[str, ...] | None:
        return self._games


class FakeDesktop:
    def __init__(self, seen: Desktop) -> None:
        self.seen = seen
        self.asked = 0

    def read(self) -> Desktop:
        self.asked += 1
        return self.seen


@pytest.mark.parametrize(
    ("window", "games", "game"),
    [
        (None, None, None),
        ("", None, ""),
        (None, (), ""),
        ("chess", None, "chess"),
        (None, ("doom", "quake"), "doom, quake"),
        ("chess", ("doom",), "chess"),
        ("", ("doom",), "doom"),
    ],
)
def test_a_game_is_seen_by_its_window_or_by_its_use_of_the_card(
    window: str | None, games: tuple[str, ...] | None, game: str | None
) -> None:
    sensors = MachineSensors(desktop=FakeDesktop(Desktop(idle_s=3.0, full_screen=window)))
    sensors.use(engine_bytes=lambda: 7, card=FakeCard(games))
    seen = sensors.read(desktop=True)
    assert (seen.game, seen.idle_s, seen.power_w, seen.programs, seen.gpu_memory_bytes) == (
        game,
        3.0,
        90.0,
        ("blender",),
        7,
    )


def test_the_desktop_is_left_alone_unless_a_limit_asks() -> None:
    desktop = FakeDesktop(Desktop(missing="a Wayland desktop hides it"))
    sensors = MachineSensors(desktop=desktop)
    assert sensors.read(desktop=False).idle_s is None
    assert desktop.asked == 0
    sensors.read(desktop=True)
    assert desktop.asked == 1
    assert sensors.missing()["idle"] == "a Wayland desktop hides it"
    desktop.seen = Desktop(pending=True)
    sensors.read(desktop=True)
    assert (sensors.missing()["idle"], sensors.missing()["yield"]) == ("", ""), "a moment, please"


def test_memory_counts_the_network_process() -> None:
    sensors = MachineSensors()
    alone = sensors.read(desktop=False).ram_bytes
    sensors.use(engine_bytes=lambda: None, card=None, others_bytes=lambda: 10**15)
    both = sensors.read(desktop=False).ram_bytes
    assert alone is not None
    assert both is not None
    assert 10**15 < both < 2 * 10**15


def test_every_limit_that_needs_a_sensor_has_a_sentence() -> None:
    sensors = MachineSensors()
    needed = {"gpu.temp", "gpu.power", "gpu.memory", "ram", "idle", "yield", "energy.price"}
    assert needed <= set(sensors.missing())
    assert sensors.read(desktop=True).power_w is None


class FakePrograms:
    def __init__(self, runs: tuple[str, ...] | None) -> None:
        self.runs = runs

    def read(self, names: tuple[str, ...]) -> tuple[str, ...] | None:
        return self.runs


def test_named_programs_and_the_cards_energy(tmp_path: Path) -> None:
    programs = FakePrograms(("obs",))
    sensors = MachineSensors(programs=programs, processor=RaplSensor(tmp_path))
    sensors.use(engine_bytes=lambda: None, card=FakeCard(None))
    seen = sensors.read(desktop=False, names=("obs", "blender"))
    assert (seen.named, seen.energy) == (("obs",), (EnergyCounter("card", "card", 7_200.0),))
    programs.runs = None
    sensors.read(desktop=False, names=("obs",))
    assert sensors.missing()["yield"] == "the watcher of programs does not answer"
    assert sensors.missing()["energy.price"].startswith("this system shows no energy counter of its processor")
