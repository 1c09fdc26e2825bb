"""The rules: each limit rests or slows the worker in time, says why, and lets go; a pause ends by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from p2prl.controls.energy import EnergyCounter
from p2prl.controls.limits import Limits
from p2prl.controls.owner_values import Price
from p2prl.controls.rules import LEAST_DUTY, MEMORY_REST_S, QUIET_S, Order, Pause, Readings, Rules
from p2prl.errors import ConfigError

NOW = 1_800_000_000.0
CALM = Readings(
    gpu_memory_bytes=6_000_000_000,
    power_w=100.0,
    temperature_c=50.0,
    ram_bytes=3_000_000_000,
    idle_s=7_200.0,
    programs=(),
    game="",
    battery_percent=101.0,
)


def rules(**limits: str) -> Rules:
    return Rules(Limits().changed({name.replace("__", "."): text for name, text in limits.items()}))


def after(which: Rules, seconds: int, readings: Readings, *, start: float = NOW, minute: int = 0) -> Order:
    """The order after this many seconds of the same readings, decided once a second."""
    order = Order()
    for second in range(seconds):
        order = which.decide(start + second, minute, readings)
    return order


def test_nothing_set_and_no_sensors() -> None:
    assert rules().decide(NOW, 0, Readings()) == Order()
    assert rules().decide(NOW, 0, CALM) == Order()


def test_a_pause_without_end() -> None:
    paused = rules()
    paused.set_pause(Pause(None, keeps_relaying=True))
    order = after(paused, 100_000, CALM)
    assert (order.rests, order.keeps_network) == (True, True)
    assert order.reason == "paused by you"
    paused.set_pause(None)
    assert paused.decide(NOW + 100_000, 0, CALM) == Order()


def test_a_pause_ends_at_its_time_and_not_before() -> None:
    paused = rules()
    paused.set_pause(Pause(NOW + 7_200))
    assert paused.decide(NOW, 0, CALM) == Order(True, "paused by you", 1.0, keeps_network=False)
    assert paused.decide(NOW + 7_199.9, 0, CALM).rests
    assert not paused.decide(NOW + 7_200, 0, CALM).rests
    assert paused.pause is None


@pytest.mark.parametrize(
    ("limits", "readings", "says"),
    [
        ({"schedule": "22:00-07:00"}, {}, "outside your schedule for another 12h"),
        ({"battery": "never"}, {"battery_percent": 99.0}, "runs on its battery"),
        ({"battery": "50%"}, {"battery_percent": 49.0}, "49 %, below your 50 %"),
        ({"idle": "10m"}, {"idle_s": 599.0}, "work goes on after 10m without you"),
        ({"yield": "programs"}, {"programs": ("blender",)}, "gives way to blender"),
        ({"yield": "games"}, {"game": "chess"}, "gives way to chess"),
        ({"yield": "program:obs,blender"}, {"named": ("obs", "blender")}, "gives way to obs, blender"),
        ({"yield": "games,program:obs"}, {"game": "chess"}, "gives way to chess"),
        ({"yield": "games,program:obs"}, {"named": ("obs",), "game": ""}, "gives way to obs"),
        ({"gpu__memory": "5GB"}, {}, "more memory"),
        ({"ram": "2.7GB"}, {}, "more memory"),
        ({"gpu__temp": "40C"}, {}, "too hot: 50 °C, and your limit is 40 °C"),
    ],
)
def test_each_limit_rests_at_once_and_says_why(limits: dict[str, str], readings: dict[str, object], says: str) -> None:
    order = rules(**limits).decide(NOW, 10 * 60, replace(CALM, **readings))  # type: ignore[arg-type]
    assert order.rests
    assert not order.keeps_network
    assert says in order.reason


@pytest.mark.parametrize(
    ("limits", "readings"),
    [
        ({"schedule": "09:00-11:00"}, {}),
        ({"battery": "always"}, {"battery_percent": 1.0}),
        ({"battery": "50%"}, {"battery_percent": 50.0}),
        ({"idle": "10m"}, {"idle_s": 600.0}),
        ({}, {"programs": ("blender",)}),
        ({"yield": "off"}, {"game": "chess", "programs": ("blender",)}),
        ({"gpu__memory": "6GB"}, {}),
        ({"ram": "2.8GB"}, {}),
        ({"gpu__temp": "50C", "gpu__power": "100W"}, {}),
    ],
)
def test_at_its_limit_a_worker_works(limits: dict[str, str], readings: dict[str, object]) -> None:
    assert rules(**limits).decide(NOW, 10 * 60, replace(CALM, **readings)) == Order()  # type: ignore[arg-type]


def test_missing_sensors_never_rest_the_worker_and_are_named() -> None:
    blind = rules(
        idle="10m",
        gpu__temp="70C",
        gpu__power="100W",
        gpu__memory="4GB",
        ram="4GB",
        battery="50%",
        **{"yield": "games"},
    )
    assert blind.decide(NOW, 0, Readings()) == Order()
    assert set(blind.unread(Readings())) == {
        *("idle", "gpu.temp", "gpu.power", "gpu.memory", "ram", "yield", "battery"),
    }
    assert blind.unread(CALM) == []
    assert rules(**{"yield": "off"}).unread(Readings()) == []


def test_after_another_program_work_waits_for_quiet() -> None:
    giving = rules(**{"yield": "games"})
    assert giving.decide(NOW, 0, replace(CALM, game="chess")).rests
    assert giving.decide(NOW + QUIET_S - 0.1, 0, CALM).rests
    assert not giving.decide(NOW + QUIET_S, 0, CALM).rests


def test_memory_above_its_limit_is_not_tried_again_at_once() -> None:
    full = rules(ram="2GB")
    assert full.decide(NOW, 0, CALM).rests
    freed = replace(CALM, ram_bytes=500_000_000)
    assert full.decide(NOW + MEMORY_REST_S - 1, 0, freed).rests
    assert not full.decide(NOW + MEMORY_REST_S, 0, freed).rests
    full.decide(NOW + MEMORY_REST_S, 0, CALM)
    full.set_limits(full.limits.changed({"ram": "4GB"}))
    assert not full.decide(NOW + MEMORY_REST_S + 1, 0, CALM).rests, "a new limit is tried at once"


class Card:
    """A card whose power follows the duty cycle, and whose temperature follows the power slowly."""

    def __init__(self) -> None:
        self.power, self.heat = 30.0, 40.0

    def second(self, order: Order) -> Readings:
        duty = 0.0 if order.rests else order.duty
        self.power = 30.0 + 270.0 * duty
        self.heat += 0.05 * (25.0 + 0.25 * self.power - self.heat)  # 100 °C at full power
        return replace(CALM, power_w=self.power, temperature_c=self.heat)


def test_power_is_kept_by_the_duty_cycle() -> None:
    keeping, card, order, powers = rules(gpu__power="200W"), Card(), Order(), []
    for second in range(600):
        order = keeping.decide(NOW + second, 0, card.second(order))
        powers.append(card.power)
    assert max(powers[3:]) <= 200 * 1.05, "after two seconds"
    assert sum(powers[100:]) / 500 > 160, "and no more is given up than needed"
    assert "W of your 200 W" in order.reason or order.duty == 1.0


def test_heat_is_kept_by_the_duty_cycle() -> None:
    keeping, card, order, heats = rules(gpu__temp="75C"), Card(), Order(), []
    for second in range(3_000):
        order = keeping.decide(NOW + second, 0, card.second(order))
        heats.append(card.heat)
    assert max(heats) < 75 + 3
    assert sum(heats[1_000:]) / 2_000 > 65, "it is no colder than it must be"


def test_a_duty_cycle_never_falls_to_nothing_and_comes_back() -> None:
    slow = rules(gpu__power="10W")
    order = after(slow, 100, CALM)
    assert (order.rests, order.duty) == (False, LEAST_DUTY)
    assert after(slow, 25, replace(CALM, power_w=5.0), start=NOW + 100) == Order()


def test_the_owners_share_bounds_what_heat_and_power_allow() -> None:
    shared = rules(share="50%")
    order = after(shared, 5, CALM)
    assert (order.rests, order.duty, order.reason) == (False, 0.5, "computing 50% of the time: your share")
    assert after(rules(share="100%"), 5, CALM) == Order()

    hot = rules(share="50%", gpu__power="100W")
    order = after(hot, 1, replace(CALM, power_w=150.0))
    assert order.duty < 0.5 * 100 / 150, "cut from half of the time, at which it drew too much"
    assert "W of your 100 W" in order.reason
    order = after(hot, 60, replace(CALM, power_w=20.0), start=NOW + 1)
    assert order.duty == 0.5


def test_heat_that_a_duty_cycle_cannot_keep_rests_until_it_is_cool() -> None:
    hot = rules(gpu__temp="60C")
    assert after(hot, 60, replace(CALM, temperature_c=63.0)).rests
    assert after(hot, 60, replace(CALM, temperature_c=57.1), start=NOW + 60).rests
    assert not after(hot, 1, replace(CALM, temperature_c=57.0), start=NOW + 120).rests


def test_limits_change_all_or_nothing() -> None:
    limits = Limits()
    with pytest.raises(ConfigError, match=r"no limit 'gpu.tmp'") as caught:
        limits.changed({"ram": "4GB", "gpu.tmp": "75C"})
    assert caught.value.remedy == "Did you mean gpu.temp?"
    with pytest.raises(ConfigError, match="takes a size"):
        limits.changed({"ram": "lots"})
    assert limits == Limits()


def test_the_strongest_layer_decides_and_is_named() -> None:
    limits = Limits.layered(
        {
            "option": {"ram": "8GB"},
            "file": {"ram": "4GB", "idle": "10m", "disk": "20GB"},
            "command": {"ram": "6GB", "disk": "30GB"},
        }
    )
    shown = {name: (each["value"], each["origin"]) for name, each in limits.document().items()}
    assert shown["ram"] == ("8GB", "option")
    assert shown["disk"] == ("30GB", "command")
    assert shown["idle"] == ("10m", "file")
    assert shown["battery"] == ("always", "default")
    assert limits.changed({"ram": "default"}).document()["ram"] == {"value": "8GB", "origin": "option"}
    with pytest.raises(ConfigError, match="no limit"):
        Limits.layered({"file": {"rum": "4GB"}})


def test_ends_that_a_wrong_clock_set_are_no_further_away_than_they_were_to_be() -> None:
    month = 30 * 86_400.0
    paused = rules()
    paused.set_pause(Pause(NOW + month + 3_600, length_s=3_600))
    assert paused.decide(NOW, 0, CALM).rests
    assert paused.decide(NOW + 3_599, 0, CALM).rests
    assert not paused.decide(NOW + 3_600, 0, CALM).rests
    crowded = rules(ram="1GB", **{"yield": "programs"})
    assert crowded.decide(NOW + month, 0, Readings(ram_bytes=2 * 10**9, programs=("blender",), game="")).rests
    assert crowded.decide(NOW, 0, CALM).rests
    assert not crowded.decide(NOW + MEMORY_REST_S, 0, Readings(ram_bytes=1, programs=(), game="")).rests


def test_programs_that_were_not_named_or_not_asked_for_rest_nobody() -> None:
    assert rules(**{"yield": "program:obs"}).decide(NOW, 0, replace(CALM, named=(), game="chess")) == Order()
    assert rules(**{"yield": "games"}).decide(NOW, 0, replace(CALM, named=("obs",))) == Order()
    named = rules(**{"yield": "program:obs"})
    assert named.named_programs == ("obs",)
    assert not named.needs_desktop
    assert named.unread(replace(CALM, named=None)) == ["yield"]
    assert named.unread(replace(CALM, named=(), game=None)) == []


@pytest.mark.parametrize(
    ("limits", "readings", "idle", "awake"),
    [
        ({}, {}, False, False),
        ({"awake": "yes"}, {}, False, True),
        ({"awake": "yes"}, {}, True, False),
        ({"awake": "yes"}, {"battery_percent": 80.0}, False, False),
        ({"awake": "yes"}, {"battery_percent": None}, False, True),
        ({"awake": "yes", "idle": "10m"}, {"idle_s": 5.0}, False, False),
    ],
)
def test_the_machine_is_kept_awake_for_work_on_mains_alone(
    limits: dict[str, str], readings: dict[str, object], idle: bool, awake: bool
) -> None:
    ruled, seen = rules(**limits), replace(CALM, **readings)  # type: ignore[arg-type]
    order = ruled.decide(NOW, 0, seen)
    assert ruled.keeps_awake(order, seen, idle=idle) is awake
    ruled.set_pause(Pause(None))
    assert not ruled.keeps_awake(ruled.decide(NOW + 1, 0, seen), seen, idle=idle)


def test_a_price_without_a_measurement_is_told() -> None:
    priced = rules(energy__price="0.30EUR")
    assert priced.price == Price(0.3, "EUR")
    assert priced.unread(replace(CALM, power_w=None)) == ["energy.price"]
    assert priced.unread(CALM) == []
    assert priced.unread(replace(CALM, power_w=None, energy=(EnergyCounter("a", "processor", 1.0),))) == []
