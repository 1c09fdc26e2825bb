"""Each limit acts within two seconds of its cause, with fake sensors and the rules' own period."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from p2prl.controls.limits import Limits
from p2prl.controls.live_controls import PERIOD_S, LiveControls
from p2prl.controls.rules import QUIET_S, Order, Readings

CALM = Readings(
    gpu_memory_bytes=10**9,
    power_w=80.0,
    temperature_c=50.0,
    ram_bytes=10**9,
    idle_s=3_600.0,
    programs=(),
    named=(),
    game="",
    battery_percent=101.0,
)
MONDAY_NOON = time.mktime((2026, 11, 23, 12, 0, 0, 0, 0, -1))

CASES: tuple[tuple[dict[str, str], dict[str, object]], ...] = (
    ({"gpu.temp": "70C"}, {"temperature_c": 71.0}),
    ({"gpu.temp": "70C"}, {"temperature_c": 90.0}),
    ({"gpu.power": "100W"}, {"power_w": 150.0}),
    ({"gpu.memory": "2GB"}, {"gpu_memory_bytes": 3 * 10**9}),
    ({"ram": "2GB"}, {"ram_bytes": 3 * 10**9}),
    ({"idle": "10m"}, {"idle_s": 0.0}),
    ({"yield": "programs"}, {"programs": ("blender",)}),
    ({"yield": "games"}, {"game": "chess"}),
    ({"yield": "program:obs"}, {"named": ("obs",)}),
    ({"battery": "never"}, {"battery_percent": 90.0}),
    ({"battery": "50%"}, {"battery_percent": 49.0}),
)


class Machine:
    """A worker, its sensors and its clock, driven a hundredth of a second at a time."""

    def __init__(self, folder: Path, limits: Mapping[str, str]) -> None:
        self.time, self.readings = MONDAY_NOON, CALM
        self.orders: list[tuple[float, Order]] = []
        self.controls = LiveControls(folder, Limits.layered({"command": limits}), self, now=lambda: self.time)
        self.controls.attach(self)
        self.due = 0.0

    def read(self, *, desktop: bool, names: tuple[str, ...] = ()) -> Readings:
        return self.readings

    def missing(self) -> Mapping[str, str]:
        return {}

    def obey(self, order: Order) -> None:
        self.orders.append((self.time, order))

    def has_followed(self, order: Order) -> bool:
        return True

    def limits_changed(self, limits: Limits) -> None:
        pass

    def is_idle(self) -> bool:
        return False

    def finish(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds * 100)):
            self.time += 0.01
            if self.time >= self.due:
                self.controls.tick()
                self.due = self.time + PERIOD_S


@pytest.mark.parametrize(("limits", "cause"), CASES)
@pytest.mark.parametrize("offset_s", [0.01, 0.5, 0.99])
def test_a_limit_acts_within_two_seconds(
    tmp_path: Path, limits: dict[str, str], cause: dict[str, object], offset_s: float
) -> None:
    machine = Machine(tmp_path, limits)
    machine.run(3.0 + offset_s)
    assert [order for _, order in machine.orders] == [Order()], "calm before"
    began = machine.time
    machine.readings = replace(CALM, **cause)  # type: ignore[arg-type]
    machine.run(4.0)
    acted, order = machine.orders[1]
    assert acted - began <= 2.0
    assert order.rests or order.duty < 1.0
    assert order.reason
    machine.readings = CALM
    machine.run(700.0)
    assert machine.orders[-1][1] == Order(), "and lets go afterwards"


def test_a_schedule_acts_at_the_minute(tmp_path: Path) -> None:
    machine = Machine(tmp_path, {"schedule": "11:00-12:01"})
    machine.run(65.0)
    (_, first), (acted, order) = machine.orders
    assert not first.rests
    assert order.rests
    assert 60.0 <= acted - MONDAY_NOON <= 62.0


def test_without_limits_nothing_rests_a_worker(tmp_path: Path) -> None:
    machine = Machine(tmp_path, {})
    machine.readings = replace(CALM, battery_percent=3.0, game="chess", programs=("blender",), temperature_c=99.0)
    machine.run(5.0)
    assert machine.orders == [(MONDAY_NOON, Order())]


def test_a_game_that_ended_is_given_a_quiet_while(tmp_path: Path) -> None:
    machine = Machine(tmp_path, {"yield": "games"})
    machine.readings = replace(CALM, game="chess")
    machine.run(2.0)
    machine.readings = CALM
    began = machine.time
    machine.run(QUIET_S + 5.0)
    acted, order = machine.orders[-1]
    assert order == Order()
    assert QUIET_S - 1.0 <= acted - began <= QUIET_S + 2.0
