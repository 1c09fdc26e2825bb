"""Laws of delay in learner updates: how old the policy is that a sampler used.

Every law of updates but `const` is named by M, which .995 of its mass stays within (for the Weibull law, where its tail
is cut), so that laws of one M share their worst case and differ in what is typical. A law of seconds becomes one of
updates when the learner's step time is known.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

from p2prl.errors import ConfigError, require

_MASS = 0.995
_LONGEST = 10**6
"""Updates: no run is as long, so a longer delay would say nothing more."""

_SECONDS = re.compile(
    r"(?P<name>const|lognorm|weibull):(?:(?P<low>[0-9.]{1,12}):)?(?P<high>[0-9.]{1,12})s(?:@(?P<step>[0-9.]{1,12}))?",
    re.ASCII,
)


@dataclass(frozen=True, kw_only=True)
class DelayLaw:
    """A distribution of whole updates."""

    text: str
    """How it is written, the step time included where the law is of seconds."""
    longest: int
    """Updates: no delay is longer."""
    quantile: Callable[[float], float]
    """Delay at a probability within (0, 1), before rounding and the cut."""

    def draw(self, uniform: float, update: int) -> int:
        """Whole updates, for a number within [0, 1): rounded, cut to `longest` and to the updates there have been."""
        delay = self.quantile(min(max(uniform, 1e-12), 1 - 1e-12))
        return min(max(0, round(delay)), self.longest, update)


def parse_delay(text: str, *, step_s: float | None = None) -> DelayLaw:
    """The law that `text` names; ConfigError on anything else.

    In updates: `const:K`; `unif:M`: uniform within 0..M; `exp:M`: exponential; `lognorm:M`: log-normal with .995 of its
    mass within 1..M, centred between the two in the logarithm, and cut there (HeteroRL, arXiv 2508.17850); `weibull:M`:
    shape 1/2, median M/16, cut at M (long-tailed: its mean is far above its median).

    In seconds, where a learner's step takes `step_s` (or what follows `@`): `const:Ks`; `lognorm:L:Us` and
    `weibull:L:Us` with .995 of their mass within L..U seconds, .0025 beyond either end, and cut there, which are
    HeteroRL's two laws at L = 60, U = 1800.
    """
    seconds = _SECONDS.fullmatch(text.strip())
    if seconds is not None:
        return _law_of_seconds(text, seconds, step_s)
    name, _, number = text.strip().partition(":")
    if name not in ("const", "unif", "exp", "lognorm", "weibull") or not number.isascii() or not number.isdigit():
        raise _unusable(text)
    most = int(number)
    if len(number) > 6 or (most < 1 and name != "const"):
        raise _unusable(text)
    return DelayLaw(text=f"{name}:{most}", longest=most, quantile=_quantile(name, most))


def _quantile(name: str, most: int) -> Callable[[float], float]:
    match name:
        case "const":
            return lambda _: most
        case "unif":
            return lambda p: p * (most + 1) - 0.5  # each of 0..M alike after rounding
        case "exp":
            return lambda p: -most / -math.log(1 - _MASS) * math.log1p(-p)
        case "lognorm":
            return _lognormal(1.0, most)
        case _:
            scale = most / 16 / math.log(2) ** 2
            return lambda p: scale * math.log1p(-p) ** 2


def _lognormal(low: float, high: float) -> Callable[[float], float]:
    z = NormalDist().inv_cdf((1 + _MASS) / 2)
    centre, deviation = math.log(low * high) / 2, math.log(high / low) / (2 * z)
    return lambda p: max(low, math.exp(centre + deviation * NormalDist().inv_cdf(p)))


def _weibull_between(low: float, high: float) -> Callable[[float], float]:
    beyond = (1 - _MASS) / 2
    # Survival exp(−(x/scale)^shape) is 1 − beyond at `low` and beyond at `high`.
    at_low, at_high = -math.log1p(-beyond), -math.log(beyond)
    inverse_shape = math.log(high / low) / math.log(at_high / at_low)
    return lambda p: max(low, high * (-math.log1p(-p) / at_high) ** inverse_shape)


def _law_of_seconds(text: str, parts: re.Match[str], step_s: float | None) -> DelayLaw:
    name = parts["name"]
    try:
        high, step = float(parts["high"]), float(parts["step"]) if parts["step"] else step_s
        low = float(parts["low"]) if parts["low"] else None
    except ValueError as error:  # "1.2.3"
        raise _unusable(text) from error
    if step is None:
        raise ConfigError(
            f"{text[:60]!r} is a law of seconds, and how long a step takes is not known",
            remedy=f"Give --step-s SECONDS, or write {text[:60]}@SECONDS.",
        )
    require("step_s", step, step > 0, "above 0")
    if (low is None) != (name == "const") or high > _LONGEST * step or (low is not None and not 0 < low < high):
        raise _unusable(text)
    if low is None:
        quantile: Callable[[float], float] = lambda _: high / step  # noqa: E731 (one law of three)
        bounds = f"{high:g}"
    else:
        quantile = (_lognormal if name == "lognorm" else _weibull_between)(low / step, high / step)
        bounds = f"{low:g}:{high:g}"
    return DelayLaw(text=f"{name}:{bounds}s@{step:g}", longest=round(high / step), quantile=quantile)


def _unusable(text: str) -> ConfigError:
    return ConfigError(
        f"{text[:60]!r} is not a law of delay",
        remedy="Write const:K, lognorm:M, weibull:M, exp:M or unif:M in learner updates, or const:Ks, lognorm:L:Us or "
        "weibull:L:Us in seconds.",
    )
