"""Rules for what a worker may do now: its owner's pause and limits, the time and the sensors. A pure state machine.

Rules that rest the worker are asked in a fixed order, and the first that applies gives the sentence shown. Heat and
power are kept by a duty cycle: the share of the time the engine computes. A rule that rested the worker for another
program lets it go on only after a quiet while, so that a game's loading screen does not wake it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from p2prl.controls.energy import EnergyCounter
from p2prl.controls.limits import Figures, Limits, figures
from p2prl.controls.owner_values import DAY_MINUTES, LEAST_SHARE, MOST_DURATION_S, Price, is_scheduled, minutes_until
from p2prl.time_text import duration_text

LEAST_DUTY = LEAST_SHARE
"""Least share of time the engine computes; below it the worker rests, and its memory is freed."""

QUIET_S = 30.0
"""Without another program for this long, work goes on."""

COOL_BY_C = 3.0
"""A worker that rested for heat goes on this far below the limit."""

FAR_TOO_HOT_C = 8.0
"""Above the limit by this much, the worker rests at once."""

MEMORY_REST_S = 600.0
"""Rest after memory was above its limit: the engine would take as much again."""

MEMORY_SLACK = 1.1
"""Memory above its limit by less is no breach: allocators round up, and a device's driver keeps some for itself."""

_DUTY_STEP = 0.05
"""Growth of the duty cycle in a second within all limits: back from rest to full in 20 s."""

_POWER_MARGIN = 0.95
"""Power aimed at, of the limit: it is measured as an average and follows late."""

_TOO_HOT_PER_C = 0.1
"""Cut of the duty cycle for each degree above the limit, each second."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Readings:
    """What the sensors say now; None where there is no sensor."""

    gpu_memory_bytes: int | None = None
    """Memory of the device that this worker holds."""
    power_w: float | None = None
    temperature_c: float | None = None
    ram_bytes: int | None = None
    """Memory of all this worker's processes."""
    idle_s: float | None = None
    """Seconds since somebody used keyboard or mouse."""
    programs: tuple[str, ...] | None = None
    """Other programs that compute on the device."""
    named: tuple[str, ...] | None = None
    """Programs that run of those the owner named to yield to."""
    game: str | None = None
    """Name of the program that fills the screen or draws with most of the card; empty for none."""
    battery_percent: float | None = None
    """Charge while the machine runs on its battery; above 100 on mains or without a battery."""
    energy: tuple[EnergyCounter, ...] = ()
    """Counters of energy; none where the machine has none that can be read."""


@dataclass(frozen=True, slots=True)
class Pause:
    """The owner's pause."""

    until: float | None
    """Unix time of its end; None until `resume`."""
    keeps_relaying: bool = False
    length_s: float = MOST_DURATION_S
    """How long it was to be. No end is further away, so that one set by a wrong clock does not outlast it."""

    def at(self, now: float) -> Pause:
        """The pause as it is at `now`."""
        is_beyond = self.until is not None and self.until - now > self.length_s
        return replace(self, until=now + self.length_s) if is_beyond else self


@dataclass(frozen=True, slots=True)
class Order:
    """What the worker does until the next order."""

    rests: bool = False
    """The engine's memory is free and nothing is sampled."""
    reason: str = ""
    """A sentence for the owner why it rests or slows down; empty otherwise."""
    duty: float = 1.0
    """Share of the time the engine computes."""
    keeps_network: bool = True
    """Whether weights are relayed and downloaded."""


_LIMITS_WITH_SENSORS = (
    ("gpu.memory", "gpu_memory_gb", "gpu_memory_bytes"),
    ("gpu.power", "gpu_power_w", "power_w"),
    ("gpu.temp", "gpu_temp_c", "temperature_c"),
    ("ram", "ram_gb", "ram_bytes"),
    ("idle", "idle_s", "idle_s"),
    ("battery", "battery_percent", "battery_percent"),
)


@dataclass(slots=True)
class Rules:
    """The state between two decisions."""

    limits: Limits
    pause: Pause | None = None
    duty: float = 1.0
    """Share of the time that heat and power allow; the owner's own share bounds it too."""
    _figures: Figures = field(init=False)
    _quiet_from: float = 0.0
    """Unix time from which no other program is in the way."""
    _memory_rest_until: float = 0.0
    _is_hot: bool = False
    _decided_at: float | None = None

    def __post_init__(self) -> None:
        self._figures = figures(self.limits)

    def set_limits(self, limits: Limits) -> None:
        """Use these limits from now on; what an old one held back starts afresh."""
        self.limits, self._figures = limits, figures(limits)
        self._memory_rest_until, self._quiet_from, self._is_hot = 0.0, 0.0, False
        self.duty = 1.0

    def set_pause(self, pause: Pause | None) -> None:
        """Pause, or end a pause."""
        self.pause = pause

    def decide(self, now: float, minute_of_week: int, readings: Readings) -> Order:
        """The order for now. `minute_of_week` is local, from Monday 0:00."""
        seconds = 1.0 if self._decided_at is None else min(2.0, max(0.0, now - self._decided_at))
        self._decided_at = now
        self._note(now, readings, seconds)
        # A clock that was put right may have left ends far away.
        self._quiet_from = min(self._quiet_from, now + QUIET_S)
        self._memory_rest_until = min(self._memory_rest_until, now + MEMORY_REST_S)
        self.pause = None if self.pause is None else self.pause.at(now)
        if self.pause is not None and self.pause.until is not None and now >= self.pause.until:
            self.pause = None
        if self.pause is not None:
            return Order(True, "paused by you", self._duty, self.pause.keeps_relaying)
        for reason in self._reasons(now, minute_of_week, readings):
            return Order(True, reason, self._duty, self._figures.keeps_relaying)
        if self._duty < 1.0:
            return Order(False, f"computing {self._duty:.0%} of the time: {self._slowed_by(readings)}", self._duty)
        return Order()

    @property
    def _duty(self) -> float:
        return min(self.duty, self._figures.share)

    @property
    def needs_desktop(self) -> bool:
        """Whether a limit asks for keyboard, mouse or full-screen windows."""
        return bool(self._figures.idle_s or self._figures.yields_to.kind)

    @property
    def named_programs(self) -> tuple[str, ...]:
        """Programs that a limit asks for by name."""
        return self._figures.yields_to.names

    @property
    def price(self) -> Price:
        """What a kWh costs the owner."""
        return self._figures.price

    def keeps_awake(self, order: Order, readings: Readings, *, idle: bool) -> bool:
        """Whether the machine must not sleep now. On its battery it may: a closed bag is no place to compute in."""
        on_battery = readings.battery_percent is not None and readings.battery_percent <= 100.0
        return self._figures.keeps_awake and not idle and not order.rests and not on_battery

    @property
    def wants_awake(self) -> bool:
        """Whether the machine is to be kept awake at all."""
        return self._figures.keeps_awake

    def unread(self, readings: Readings) -> list[str]:
        """Names of limits that are set and cannot be kept, for want of a sensor."""
        names = [
            name
            for name, figure, reading in _LIMITS_WITH_SENSORS
            if getattr(self._figures, figure) and getattr(readings, reading) is None
        ]
        wants = self._figures
        rule = wants.yields_to
        lacks_programs = rule.kind == "programs" and readings.programs is None
        if lacks_programs or (rule.kind and readings.game is None) or (rule.names and readings.named is None):
            names.append("yield")
        if wants.price.amount and not readings.energy and readings.power_w is None:
            names.append("energy.price")
        return names

    def _reasons(self, now: float, minute: int, readings: Readings) -> Iterator[str]:
        wants = self._figures
        if not is_scheduled(wants.schedule, minute):
            yield f"outside your schedule for another {_minutes_text(minutes_until(wants.schedule, minute))}"
        if readings.battery_percent is not None and readings.battery_percent <= 100.0:
            if wants.battery_percent > 100.0:
                yield "this machine runs on its battery"
            elif readings.battery_percent < wants.battery_percent:
                yield f"the battery is at {readings.battery_percent:.0f} %, below your {wants.battery_percent:g} %"
        if wants.idle_s and readings.idle_s is not None and readings.idle_s < wants.idle_s:
            yield f"you are here; work goes on after {duration_text(wants.idle_s)} without you"
        if now < self._quiet_from:
            yield f"gives way to {self._others(readings) or 'a program that has just ended'}"
        if now < self._memory_rest_until:
            yield "it took more memory than your limit; a start within the limit uses less"
        if self._is_hot:
            yield f"too hot: {readings.temperature_c or 0.0:.0f} °C, and your limit is {wants.gpu_temp_c:g} °C"

    def _note(self, now: float, readings: Readings, seconds: float) -> None:
        """Take the readings into the state that outlasts them."""
        wants = self._figures
        if self._others(readings):
            self._quiet_from = now + QUIET_S
        held, ram = readings.gpu_memory_bytes, readings.ram_bytes
        if (wants.gpu_memory_gb and held is not None and held > wants.gpu_memory_gb * 1e9 * MEMORY_SLACK) or (
            wants.ram_gb and ram is not None and ram > wants.ram_gb * 1e9 * MEMORY_SLACK
        ):
            self._memory_rest_until = now + MEMORY_REST_S
        allowed = 1.0
        if wants.gpu_power_w and readings.power_w is not None and readings.power_w > wants.gpu_power_w:
            allowed = min(allowed, self._duty * _POWER_MARGIN * wants.gpu_power_w / readings.power_w)
        above = 0.0
        if wants.gpu_temp_c and readings.temperature_c is not None:
            above = readings.temperature_c - wants.gpu_temp_c
            if above > 0.0:
                allowed = min(allowed, self._duty * max(0.0, 1.0 - _TOO_HOT_PER_C * above * seconds))
            self._is_hot = above > FAR_TOO_HOT_C or (self._is_hot and above > -COOL_BY_C)
            if above > 0.0 and allowed < LEAST_DUTY:
                self._is_hot = True
        else:
            self._is_hot = False
        if allowed < 1.0:
            self.duty = max(LEAST_DUTY, allowed)
        elif not self._near_a_limit(readings):
            self.duty = min(1.0, self.duty + _DUTY_STEP * seconds)

    def _near_a_limit(self, readings: Readings) -> bool:
        """Whether a faster duty cycle would soon be above a limit again."""
        wants = self._figures
        power, heat = readings.power_w, readings.temperature_c
        return bool(
            (wants.gpu_power_w and power is not None and power > _POWER_MARGIN * wants.gpu_power_w)
            or (wants.gpu_temp_c and heat is not None and heat > wants.gpu_temp_c - 1.0)
        )

    def _others(self, readings: Readings) -> str:
        """Programs to give way to; empty for none."""
        wants = self._figures
        rule = wants.yields_to
        if rule.names and readings.named:
            return ", ".join(readings.named[:3])
        if rule.kind == "programs" and readings.programs:
            return ", ".join(readings.programs[:3])
        if rule.kind and readings.game:
            return readings.game
        return ""

    def _slowed_by(self, readings: Readings) -> str:
        wants, parts = self._figures, []
        if self.duty >= wants.share:
            return "your share"
        if wants.gpu_temp_c and readings.temperature_c is not None:
            parts.append(f"{readings.temperature_c:.0f} °C of your {wants.gpu_temp_c:g} °C")
        if wants.gpu_power_w and readings.power_w is not None:
            parts.append(f"{readings.power_w:.0f} W of your {wants.gpu_power_w:g} W")
        return ", ".join(parts) or "back to full speed in a moment"


def _minutes_text(minutes: int) -> str:
    return duration_text(60.0 * minutes) if minutes < DAY_MINUTES else f"{minutes / DAY_MINUTES:.0f} days"
