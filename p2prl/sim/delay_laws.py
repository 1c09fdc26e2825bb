"""Laws of delay: how long a message takes on a network of strangers, drawn from a seeded source.

A law is written as text (`lognormal:60:1800`) so that a test, a benchmark and the command line name it the same way.
All values are seconds, unless the caller counts in something else (learner updates).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

from p2prl.errors import ConfigError
from p2prl.swarm.ports import Randomness

_LOGNORMAL_MASS = 0.995
"""Probability mass that HeteroRL's log-normal puts between its two bounds; the rest is clipped to them."""

_FORMS = "const:5, uniform:A:B, exp:MEAN, lognormal:LOWER:UPPER or weibull:MAX[:SHAPE[:MEDIAN]]"


@dataclass(frozen=True, slots=True)
class DelayLaw:
    """A distribution of non-negative delays. `text` is how it was written; `draw` takes a source of uniforms."""

    text: str
    quantile: Callable[[float], float]
    """Delay at a probability in [0, 1): inverse-transform sampling spends one uniform a draw, whatever the law."""

    def draw(self, rng: Randomness) -> float:
        """One delay."""
        return self.quantile(rng.random())


def parse_delay(text: str) -> DelayLaw:
    """The law that `text` names. Raises `ConfigError` on anything else.

    `lognormal:L:U` is HeteroRL's (arXiv 2508.17850): z = Φ⁻¹((1 + .995)/2), μ = (ln L + ln U)/2, σ = (ln U − ln L)/2z,
    clipped to [L, U]. `weibull:M` has shape ½ and median M/16 and is clipped to M.
    """
    name, *rest = text.strip().split(":")
    try:
        numbers = [float(part) for part in rest]
    except ValueError as error:
        raise _unusable(text) from error
    if any(not math.isfinite(number) or number < 0 for number in numbers):
        raise _unusable(text)
    match name, numbers:
        case "const", [value]:
            return DelayLaw(text, lambda _: value)
        case "uniform", [low, high] if low <= high:
            return DelayLaw(text, lambda p: low + (high - low) * p)
        case "exp", [mean]:
            return DelayLaw(text, lambda p: -mean * math.log1p(-p))
        case "lognormal", [low, high] if 0 < low <= high:
            return DelayLaw(text, _lognormal(low, high))
        case "weibull", [most, *more] if most > 0 and len(more) <= 2 and all(number > 0 for number in more):
            shape = more[0] if more else 0.5
            median = more[1] if len(more) > 1 else most / 16
            return DelayLaw(text, _weibull(most, shape, median))
    raise _unusable(text)


def _lognormal(low: float, high: float) -> Callable[[float], float]:
    if low == high:
        return lambda _: low
    z = NormalDist().inv_cdf((1 + _LOGNORMAL_MASS) / 2)
    law = NormalDist((math.log(low) + math.log(high)) / 2, (math.log(high) - math.log(low)) / (2 * z))
    return lambda p: min(high, max(low, math.exp(law.inv_cdf(p)))) if p > 0 else low


def _weibull(most: float, shape: float, median: float) -> Callable[[float], float]:
    scale = median / math.log(2) ** (1 / shape)
    return lambda p: min(most, scale * (-math.log1p(-p)) ** (1 / shape))


def _unusable(text: str) -> ConfigError:
    return ConfigError(f"{text[:60]!r} is not a law of delay", remedy=f"Write {_FORMS}, with numbers of seconds.")
