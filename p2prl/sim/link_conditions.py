"""Conditions of simulated links: latency, loss, reordering, partitions, and extra delay for chosen messages.

Tests, the simulator and the command line name a distribution the same way. Values are seconds;
`p2prl_lab.bench.staleness.staleness_distributions` counts in learner updates with the same quantile functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import NormalDist

from p2prl.errors import ConfigError, RemoteProtocolError
from p2prl.protocol import frames, limits
from p2prl.protocol.envelope import Envelope
from p2prl.protocol.identity import PeerId
from p2prl.protocol.kinds import Kind
from p2prl.protocol.link_messages import Push
from p2prl.protocol.wire_codec import decode
from p2prl.swarm.ports import Randomness

HETERORL_MASS = 0.995
"""Probability mass that HeteroRL's log-normal (arXiv 2508.17850) puts between its two bounds."""

LONG_NAMES = {"lognorm": "lognormal", "unif": "uniform"}
"""Names that the staleness benchmark stores its laws under, and the same distributions here: each reads both names."""

Quantile = Callable[[float], float]
"""Delay at a probability: inverse-transform sampling uses one uniform number per draw for every distribution."""

_FORMS = "const:5, uniform:FROM:TO, exp:MEAN, lognormal:LOWER:UPPER or weibull:MAX[:SHAPE[:MEDIAN]]"


@dataclass(frozen=True, slots=True)
class DelayDistribution:
    """A distribution of non-negative delays, seconds."""

    text: str
    """Its text form."""
    quantile: Quantile
    """Delay at a probability in [0, 1)."""

    def draw(self, rng: Randomness) -> float:
        """One delay."""
        return self.quantile(rng.random())


def parse_delay(text: str) -> DelayDistribution:
    """Parse a distribution's text form, or with a name of `LONG_NAMES`. Raises `ConfigError` on anything else.

    `lognormal:L:U` is HeteroRL's: z = Φ⁻¹((1 + .995)/2), μ = (ln L + ln U)/2, σ = (ln U − ln L)/2z, clipped to [L, U].
    `weibull:M` has shape ½ and median M/16 and is clipped to M.
    """
    name, *rest = text.strip().split(":")
    name = LONG_NAMES.get(name, name)
    try:
        numbers = [float(part) for part in rest]
    except ValueError as error:
        raise _unusable(text) from error
    if any(not math.isfinite(number) or number < 0 for number in numbers):
        raise _unusable(text)
    match name, numbers:
        case "const", [value]:
            return DelayDistribution(text, lambda _: value)
        case "uniform", [low, high] if low <= high:
            return DelayDistribution(text, lambda p: low + (high - low) * p)
        case "exp", [mean]:
            return DelayDistribution(text, exponential_quantile(mean))
        case "lognormal", [low, high] if 0 < low <= high:
            unclipped = lognormal_quantile(low, high)
            return DelayDistribution(text, lambda p: min(high, max(low, unclipped(p))))
        case "weibull", [most, *more] if most > 0 and len(more) <= 2 and all(number > 0 for number in more):
            tail = weibull_quantile(more[0] if more else 0.5, more[1] if len(more) > 1 else most / 16)
            return DelayDistribution(text, lambda p: min(most, tail(p)))
    raise _unusable(text)


def exponential_quantile(mean: float) -> Quantile:
    """Quantile function of the exponential distribution."""
    return lambda p: -mean * math.log1p(-p)


def lognormal_quantile(low: float, high: float) -> Quantile:
    """Quantiles of a log-normal with `HETERORL_MASS` between the bounds, median at their geometric mean."""
    if low == high:
        return lambda _: low
    z = NormalDist().inv_cdf((1 + HETERORL_MASS) / 2)
    logarithm = NormalDist((math.log(low) + math.log(high)) / 2, (math.log(high) - math.log(low)) / (2 * z))
    return lambda p: math.exp(logarithm.inv_cdf(p)) if p > 0 else 0.0


def weibull_quantile(shape: float, median: float) -> Quantile:
    """Quantile function of the Weibull distribution, unclipped; a shape below 1 has a heavy tail."""
    scale = median / math.log(2) ** (1 / shape)
    return lambda p: scale * (-math.log1p(-p)) ** (1 / shape)


def _unusable(text: str) -> ConfigError:
    return ConfigError(f"{text[:60]!r} is not a delay distribution", remedy=f"Use {_FORMS}, in seconds.")


ExtraDelay = Callable[[Randomness, PeerId, PeerId, bytes], float]
"""(randomness, source, destination, frame) → seconds on top of the link's latency."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkConditions:
    """Conditions of all links; `VirtualNetwork.host` sets each peer's own bandwidth."""

    latency: DelayDistribution = field(default_factory=lambda: parse_delay("uniform:0.02:0.12"))
    """One-way latency, seconds, drawn once for each frame."""
    loss: float = 0.0
    """Probability that a frame is lost silently; harsher than a real link, which would break."""
    reorder: float = 0.0
    """Probability that a frame may overtake earlier ones; the others keep the order of their size class."""
    turn_s: float = 0.002
    """Inputs of a node within this time are handled together, as in one turn of an event loop."""
    directory_latency: DelayDistribution = field(default_factory=lambda: parse_delay("uniform:0.05:0.3"))
    """Time of one directory put or get, seconds."""
    refused_s: float = 1.0
    """Time until a dial or a send to a crashed peer fails."""
    timeout_s: float = 10.0
    """Time until a dial or a send across a partition fails."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A cut between groups of peers for some time."""

    side: dict[PeerId, int]
    """Group of each peer; peers in no group can reach everyone."""
    begins: float
    ends: float

    def separates(self, one: PeerId, other: PeerId, now: float) -> bool:
        """Whether the two are cut off from each other at `now`."""
        if not self.begins <= now < self.ends:
            return False
        a, b = self.side.get(one), self.side.get(other)
        return a is not None and b is not None and a != b


def slow_envelopes(kind: Kind, delay: DelayDistribution) -> ExtraDelay:
    """Extra delay for pushed envelopes of one kind, such as rollout groups."""

    def extra(rng: Randomness, source: PeerId, destination: PeerId, frame: bytes) -> float:  # noqa: ARG001
        return delay.draw(rng) if _pushes(frame, kind) else 0.0

    return extra


def _pushes(frame: bytes, kind: Kind) -> bool:
    if frame[0] != Kind.PUSH:
        return False
    try:
        (message,) = frames.unpack(frame)
        assert isinstance(message, Push)
        return decode(message.envelope, Envelope, limit_bytes=limits.MAX_ENVELOPE_BYTES).kind == kind
    except RemoteProtocolError:
        return False  # malformed frames of an adversary travel as fast as the rest


def single_messages(frame: bytes) -> Iterable[bytes]:
    """The frame's messages, one frame each, when one of them may be an envelope; else the frame as it is."""
    if not any(kind == Kind.PUSH for kind, _ in frames.split(frame)):
        return (frame,)
    return (packed for _, packed in frames.split(frame))
