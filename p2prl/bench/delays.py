"""Laws of delay in learner updates: how old the policy is that a sampler used.

Every law but `const` is named by M, which .995 of its mass stays within (for the Weibull law, where its tail is cut),
so that laws of one M share their worst case and differ in what is typical.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

from p2prl.errors import ConfigError

_MASS = 0.995


@dataclass(frozen=True, kw_only=True)
class DelayLaw:
    """A distribution of whole updates."""

    text: str
    """How it is written."""
    longest: int
    """Updates: no delay is longer."""
    quantile: Callable[[float], float]
    """Delay at a probability within (0, 1), before rounding and the cut."""

    def draw(self, uniform: float, update: int) -> int:
        """Whole updates, for a number within [0, 1): rounded, cut to `longest` and to the updates there have been."""
        delay = self.quantile(min(max(uniform, 1e-12), 1 - 1e-12))
        return min(max(0, round(delay)), self.longest, update)


def parse_delay(text: str) -> DelayLaw:
    """The law that `text` names; ConfigError on anything else.

    `const:K`; `unif:M`: uniform within 0..M; `exp:M`: exponential; `lognorm:M`: log-normal with .995 of its mass within
    1..M, centred between the two in the logarithm, and cut there (HeteroRL, arXiv 2508.17850); `weibull:M`: shape 1/2,
    median M/16, cut at M (long-tailed: its mean is far above its median).
    """
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
            z = NormalDist().inv_cdf((1 + _MASS) / 2)
            centre, deviation = math.log(most) / 2, math.log(most) / (2 * z)
            return lambda p: max(1.0, math.exp(centre + deviation * NormalDist().inv_cdf(p)))
        case _:
            scale = most / 16 / math.log(2) ** 2
            return lambda p: scale * math.log1p(-p) ** 2


def _unusable(text: str) -> ConfigError:
    return ConfigError(
        f"{text[:60]!r} is not a law of delay",
        remedy="Write const:K, lognorm:M, weibull:M, exp:M or unif:M, in learner updates.",
    )
