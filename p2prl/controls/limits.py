"""Limits that an owner sets: their names, what they mean, how they are written, and where each value came from.

Layers, weakest first: the default, the file, a remembered command, an option of the start. A command given to a
running worker is newer than all of them.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from p2prl.controls.owner_values import (
    OFF,
    Hours,
    Price,
    YieldRule,
    read_amount,
    read_battery,
    read_choice,
    read_duration_s,
    read_price,
    read_schedule,
    read_share,
    read_size_gb,
    read_temperature_c,
    read_yield,
)
from p2prl.errors import ConfigError

Origin = Literal["default", "file", "command", "option"]
"""Where a value comes from, weakest first."""

ORIGINS: tuple[Origin, ...] = get_args(Origin)

MOST_VALUE_CHARACTERS = 400
"""Of a limit as text: a schedule of `MOST_HOURS_ENTRIES` parts fits, and so do a dozen names of programs."""


@dataclass(frozen=True, slots=True)
class LimitSpec:
    """One limit."""

    name: str
    read: Callable[[str], Any]
    """Its value; `ValueError` with the expected form."""
    default: str
    example: str
    meaning: str
    """A line for people."""


def _choice(*choices: str) -> Callable[[str], str]:
    return lambda text: read_choice(text, choices)


def _amount(*units: str) -> Callable[[str], float]:
    return lambda text: read_amount(text, *units)


SPECS = (
    LimitSpec("share", read_share, OFF, "50%", "Most of the time that it computes: the rest is for other work."),
    LimitSpec("gpu.memory", read_size_gb, OFF, "8GB", "Most memory of the device for weights and samples."),
    LimitSpec("gpu.power", _amount("W"), OFF, "200W", "Most power of the device, kept by resting between steps."),
    LimitSpec("gpu.temp", read_temperature_c, OFF, "75C", "Highest temperature, kept by resting between steps."),
    LimitSpec("ram", read_size_gb, OFF, "8GB", "Most memory of all its processes together."),
    LimitSpec("idle", read_duration_s, OFF, "10m", "Work only after you have been away this long."),
    LimitSpec(
        "yield",
        read_yield,
        OFF,
        "games",
        "Rest while a full-screen game runs (games), any other program on the device (programs), or those you name"
        " (program:blender,obs; games,program:obs).",
    ),
    LimitSpec("schedule", read_schedule, OFF, "22:00-07:00, Sat-Sun", "Hours to work in, local time."),
    LimitSpec("battery", read_battery, "always", "never", "Work without mains: never, always, or above a charge."),
    LimitSpec("net.up", _amount("Mbit"), OFF, "5Mbit", "Upload of weights; off takes 80 % of what is measured."),
    LimitSpec("net.month", read_size_gb, OFF, "50GB", "Weights uploaded in a calendar month."),
    LimitSpec("disk", read_size_gb, OFF, "20GB", "Most disk for everything the run stores."),
    LimitSpec("awake", _choice("yes", "no"), "no", "yes", "Keep the machine from sleeping while it works."),
    LimitSpec("energy.price", read_price, OFF, "0.30EUR", "What a kWh costs you: shown beside the measured energy."),
    LimitSpec("keep-relaying", _choice("yes", "no"), "no", "yes", "Whether a paused worker goes on uploading weights."),
)

_BY_NAME = {spec.name: spec for spec in SPECS}


def limit_spec(name: str) -> LimitSpec:
    """The limit of this name. `ConfigError` with the nearest name."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    near = difflib.get_close_matches(name, _BY_NAME, n=1)
    hint = f"Did you mean {near[0]}?" if near else f"Limits: {', '.join(_BY_NAME)}."
    raise ConfigError(f"there is no limit {name[:40]!r}", remedy=hint)


def checked(name: str, text: str) -> Any:
    """The value of a limit's text. `ConfigError` names the limit and the expected form."""
    spec = limit_spec(name)
    try:
        if len(text) > MOST_VALUE_CHARACTERS:
            raise ValueError(f"at most {MOST_VALUE_CHARACTERS} characters")  # noqa: TRY301 - one error for all texts
        return spec.read(text)
    except ValueError as error:
        raise ConfigError(
            f"{name}={text[:60]} is not understood: it takes {error}",
            remedy=f"For example {name}={shlex.quote(spec.example)}.",
        ) from error


@dataclass(frozen=True, slots=True)
class Setting:
    """A limit's text and where it came from."""

    text: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class Limits:
    """All limits in force. Every text was checked."""

    settings: Mapping[str, Setting] = field(
        default_factory=lambda: {spec.name: Setting(spec.default, "default") for spec in SPECS}
    )
    below: Mapping[str, Setting] = field(default_factory=dict)
    """What holds without any command, where that is no default."""

    @classmethod
    def layered(cls, layers: Mapping[Origin, Mapping[str, str]]) -> Limits:
        """The strongest layer that names a limit decides it. `ConfigError` for an unknown name or a wrong text."""
        settings, below = dict(cls().settings), {}
        for origin in ORIGINS:
            for name, text in layers.get(origin, {}).items():
                checked(name, text)
                settings[name] = Setting(text, origin)
                if origin != "command":
                    below[name] = settings[name]
        return cls(settings, below)

    def changed(self, changes: Mapping[str, str]) -> Limits:
        """With a command's changes; `default` as a text takes a command's value back, and the file's or the start's
        holds again. All or nothing: `ConfigError`."""
        settings = dict(self.settings)
        for name, text in changes.items():
            spec = limit_spec(name)
            if text.strip().casefold() == "default":
                settings[name] = self.below.get(name, Setting(spec.default, "default"))
            else:
                checked(name, text)
                settings[name] = Setting(text, "command")
        return replace(self, settings=settings)

    def value(self, name: str) -> Any:
        """The value of a limit, in the unit of its name's reader."""
        return _BY_NAME[name].read(self.settings[name].text)

    def document(self) -> dict[str, dict[str, str]]:
        """Texts and origins by name, for a status."""
        return {name: {"value": each.text, "origin": each.origin} for name, each in self.settings.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """The values of all limits, read once: 0 or empty is no limit, but for `share`.

    Each limit is a field, because no type checker knows the names of `Limits.value`.
    """

    share: float
    """Of the time; 1 is no limit."""
    gpu_memory_gb: float
    gpu_power_w: float
    gpu_temp_c: float
    ram_gb: float
    idle_s: float
    yields_to: YieldRule
    schedule: tuple[Hours, ...]
    battery_percent: float
    up_mbit: float
    month_gb: float
    disk_gb: float
    keeps_awake: bool
    price: Price
    """Of a kWh."""
    keeps_relaying: bool


def figures(limits: Limits) -> Figures:
    """The values of all limits."""
    return Figures(
        share=limits.value("share"),
        gpu_memory_gb=limits.value("gpu.memory"),
        gpu_power_w=limits.value("gpu.power"),
        gpu_temp_c=limits.value("gpu.temp"),
        ram_gb=limits.value("ram"),
        idle_s=limits.value("idle"),
        yields_to=limits.value("yield"),
        schedule=limits.value("schedule"),
        battery_percent=limits.value("battery"),
        up_mbit=limits.value("net.up"),
        month_gb=limits.value("net.month"),
        disk_gb=limits.value("disk"),
        keeps_awake=limits.value("awake") == "yes",
        price=limits.value("energy.price"),
        keeps_relaying=limits.value("keep-relaying") == "yes",
    )
