"""Distributions of staleness in learner updates: the age of the policy that a sampler uses.

Every distribution in updates except `const` has one parameter M: .995 of its mass lies within M (Weibull: its tail is
cut at M). Distributions with equal M share their worst case and differ in the typical delay. A distribution in seconds
is converted to updates with the learner's step time.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from p2prl.errors import ConfigError, require
from p2prl.sim.link_conditions import (
    HETERORL_MASS,
    LONG_NAMES,
    Quantile,
    exponential_quantile,
    lognormal_quantile,
    weibull_quantile,
)

_LONGEST = 10**6
"""Longest delay in updates; no run is that long."""

_STORED_NAMES = {long: short for short, long in LONG_NAMES.items()}
"""The simulator's names, and those in the text form here, by which results are found again."""

_SECONDS = re.compile(
    r"(?P<name>const|lognorm|lognormal|weibull):(?:(?P<low>[0-9.]{1,12}):)?(?P<high>[0-9.]{1,12})s(?:@(?P<step>[0-9.]{1,12}))?",
    re.ASCII,
)


@dataclass(frozen=True, kw_only=True)
class StalenessDistribution:
    """A distribution of integer delays in updates."""

    text: str
    """Its text form, including the step time when it is in seconds."""
    longest: int
    """Longest delay in updates."""
    quantile: Quantile
    """Delay at a probability within (0, 1), before rounding and clipping."""

    def draw(self, uniform: float, update: int) -> int:
        """Delay for a number within [0, 1), rounded to updates; at most `longest` and the updates done so far."""
        delay = self.quantile(min(max(uniform, 1e-12), 1 - 1e-12))
        return min(max(0, round(delay)), self.longest, update)


def parse_staleness(text: str, *, step_s: float | None = None) -> StalenessDistribution:
    """Parse a distribution; ConfigError on an invalid one.

    In updates: `const:K`; `unif:M`: uniform within 0..M; `exp:M`: exponential; `lognorm:M`: log-normal with .995 of its
    mass within 1..M, centered between the two in the logarithm, and cut there (HeteroRL, arXiv 2508.17850);
    `weibull:M`: shape 1/2, median M/16, cut at M (long-tailed: its mean is far above its median).

    In seconds, with learner steps of `step_s` (or the number after `@`) seconds: `const:Ks`; `lognorm:L:Us` and
    `weibull:L:Us` with .995 of their mass within L..U seconds, .0025 beyond either end, and cut there, which are
    HeteroRL's two distributions at L = 60, U = 1800.

    `uniform` and `lognormal`, the simulator's names, mean `unif` and `lognorm`.
    """
    seconds = _SECONDS.fullmatch(text.strip())
    if seconds is not None:
        return _of_seconds(text, seconds, step_s)
    name, _, number = text.strip().partition(":")
    name = _STORED_NAMES.get(name, name)
    if name not in ("const", "unif", "exp", "lognorm", "weibull") or not number.isascii() or not number.isdigit():
        raise _unusable(text)
    most = int(number)
    if len(number) > 6 or (most < 1 and name != "const"):
        raise _unusable(text)
    return StalenessDistribution(text=f"{name}:{most}", longest=most, quantile=_quantile(name, most))


def _quantile(name: str, most: int) -> Quantile:
    match name:
        case "const":
            return lambda _: most
        case "unif":
            return lambda p: p * (most + 1) - 0.5  # each of 0..M equally likely after rounding
        case "exp":
            return exponential_quantile(most / -math.log(1 - HETERORL_MASS))
        case "lognorm":
            return _at_least(1.0, lognormal_quantile(1.0, most))
        case _:
            return weibull_quantile(0.5, most / 16)


def _at_least(low: float, quantile: Quantile) -> Quantile:
    return lambda p: max(low, quantile(p))


def _weibull_between(low: float, high: float) -> Quantile:
    beyond = (1 - HETERORL_MASS) / 2
    # Survival exp(−(x/scale)^shape) is 1 − beyond at `low` and beyond at `high`.
    at_low, at_high = -math.log1p(-beyond), -math.log(beyond)
    inverse_shape = math.log(high / low) / math.log(at_high / at_low)
    return lambda p: high * (-math.log1p(-p) / at_high) ** inverse_shape


def _of_seconds(text: str, parts: re.Match[str], step_s: float | None) -> StalenessDistribution:
    name = _STORED_NAMES.get(parts["name"], parts["name"])
    try:
        high, step = float(parts["high"]), float(parts["step"]) if parts["step"] else step_s
        low = float(parts["low"]) if parts["low"] else None
    except ValueError as error:  # "1.2.3"
        raise _unusable(text) from error
    if step is None:
        raise ConfigError(
            f"{text[:60]!r} is in seconds, but the duration of a learner step is unknown",
            remedy=f"Set --step-s SECONDS, or write {text[:60]}@SECONDS.",
        )
    require("step_s", step, step > 0, "above 0")
    if (low is None) != (name == "const") or high > _LONGEST * step or (low is not None and not 0 < low < high):
        raise _unusable(text)
    if high > 0 and round(high / step) == 0:
        raise ConfigError(
            f"the delays of {text[:60]!r} are at most half a learner step of {step:g} seconds, and so none at all",
            remedy="Give a longer delay or shorter steps; const:0 is a run without delay.",
        )
    if low is None:
        quantile: Quantile = lambda _: high / step  # noqa: E731 (one of three)
        bounds = f"{high:g}"
    else:
        between = lognormal_quantile if name == "lognorm" else _weibull_between
        quantile = _at_least(low / step, between(low / step, high / step))
        bounds = f"{low:g}:{high:g}"
    return StalenessDistribution(text=f"{name}:{bounds}s@{step:g}", longest=round(high / step), quantile=quantile)


def _unusable(text: str) -> ConfigError:
    return ConfigError(
        f"{text[:60]!r} is not a delay distribution",
        remedy="Write const:K, lognorm:M, weibull:M, exp:M or unif:M in learner updates, or const:Ks, lognorm:L:Us or "
        "weibull:L:Us in seconds.",
    )
