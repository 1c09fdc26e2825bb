"""Laws of delay: a distribution that all samplers share, one by peer, by arrival in bursts, by versions taken every K
updates, within a group, or none but the starting policy.

Shape legend: M seeds, S samplers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from p2prl.errors import ConfigError, require
from p2prl_lab.bench.staleness.staleness_distributions import StalenessDistribution, parse_staleness

SAMPLERS = 4
"""Samplers of a run, each with a delay of its own. All of them return after a burst, one of them was away."""

STEADY = 5
"""Updates per update of the longest delay from which on a run counts as steady: a fifth of it is start-up."""

_BURST = re.compile(r"burst:([0-9]{1,6})", re.ASCII)
_PERIODIC = re.compile(r"(stage|block):([0-9]{1,6})", re.ASCII)
_LAGS = {"stage": 0, "block": 1}
OFFLINE = "start"
"""The law under which every rollout is the starting policy's: what a delay costs that never ends."""

_UNENDING = 10**6
"""Delay in updates that no run is as long as."""

_REMEDY = (
    "Write a distribution, such as const:64 or lognorm:60:1800s@12.5; peers:LAW/LAW/… with one for each sampler; "
    "burst:K; stage:K; block:K; within:LAW; or start."
)


class DelayLaw(Protocol):
    """A rule for the age, in learner updates, of the policy that a sampler uses."""

    @property
    def text(self) -> str:
        """Its text form."""
        ...

    @property
    def longest(self) -> int:
        """Longest delay in updates."""
        ...

    @property
    def settled(self) -> int:
        """Update from which on delays are as they stay; 0 offline, where they never are."""
        ...

    @property
    def period(self) -> int:
        """Samplers take only policies whose number of updates is a multiple of this, so no other has to be kept."""
        ...

    @property
    def within_groups(self) -> bool:
        """Whether the completions of one prompt come from all samplers; otherwise each prompt has one sampler."""
        ...

    @property
    def is_offline(self) -> bool:
        """Whether every rollout is the starting policy's, so that no other has to be kept."""
        ...

    def delay(self, uniform: float, update: int, sampler: int, /) -> int:
        """Delay of a sampler at an update, for a number within [0, 1); at most the updates done so far."""
        ...


@dataclass(frozen=True, kw_only=True)
class SharedLaw:
    """One distribution for all samplers, each drawing for itself."""

    distribution: StalenessDistribution
    within_groups: bool = False
    """See `DelayLaw.within_groups`."""

    is_offline = False
    period = 1

    @property
    def text(self) -> str:
        """Its text form."""
        return ("within:" if self.within_groups else "") + self.distribution.text

    @property
    def longest(self) -> int:
        """Longest delay in updates."""
        return self.distribution.longest

    @property
    def settled(self) -> int:
        """See `DelayLaw.settled`."""
        return self.longest

    def delay(self, uniform: float, update: int, _sampler: int, /) -> int:
        """See `DelayLaw.delay`; the same for every sampler."""
        return self.distribution.draw(uniform, update)


@dataclass(frozen=True, kw_only=True)
class PeerLaw:
    """A mixture by peer: sampler i always draws from distribution i, so one slow volunteer is always the slow one."""

    distributions: tuple[StalenessDistribution, ...]
    """One for each sampler; a shorter list repeats."""
    within_groups: bool = False
    """See `DelayLaw.within_groups`."""

    is_offline = False
    period = 1

    @property
    def text(self) -> str:
        """Its text form."""
        peers = "peers:" + "/".join(distribution.text for distribution in self.distributions)
        return ("within:" if self.within_groups else "") + peers

    @property
    def longest(self) -> int:
        """Longest delay of any sampler."""
        return max(distribution.longest for distribution in self.distributions)

    @property
    def settled(self) -> int:
        """See `DelayLaw.settled`."""
        return self.longest

    def delay(self, uniform: float, update: int, sampler: int, /) -> int:
        """See `DelayLaw.delay`."""
        return self.distributions[sampler % len(self.distributions)].draw(uniform, update)


@dataclass(frozen=True, kw_only=True)
class BurstLaw:
    """A volunteer away for `away` updates delivers everything it sampled meanwhile at once.

    Of four equal volunteers one leaves with the current policy and samples on. The others keep the learner on fresh
    rollouts for `away` updates. Then the absent one delivers a quarter of what they did, `away`/4 whole batches of the
    policy it had left with, and the cycle begins again. So a batch is either fresh or older than `away` throughout.
    """

    away: int
    """Updates between its deliveries, at least 1."""

    within_groups = is_offline = False
    period = 1

    @property
    def text(self) -> str:
        """Its text form."""
        return f"burst:{self.away}"

    @property
    def settled(self) -> int:
        """See `DelayLaw.settled`: the first delivery."""
        return self.away

    @property
    def longest(self) -> int:
        """Delay of a delivery's last batch."""
        return self.away + self._batches - 1

    @property
    def _batches(self) -> int:
        return -(-self.away // SAMPLERS)

    def delay(self, _uniform: float, update: int, _sampler: int, /) -> int:
        """See `DelayLaw.delay`; neither random nor different between samplers."""
        since = update % (self.away + self._batches)
        return since if since >= self.away else 0


@dataclass(frozen=True, kw_only=True)
class PeriodicLaw:
    """All samplers take a version every K updates: `stage:K` at once, `block:K` one period late.

    Under `stage:K` ages are 0 … K − 1: the learner waits for a batch of K updates' rollouts and trains through it.
    Under `block:K` the rollouts of updates K(k + 1) … K(k + 2) − 1 come from the policy of update K·k, so ages are
    K … 2K − 1: the samplers work on the next batch meanwhile.
    """

    every: int
    """K, at least 1."""
    lag: int
    """Periods that a version waits before its rollouts are trained on."""

    within_groups = is_offline = False

    @property
    def text(self) -> str:
        """Its text form."""
        return f"{next(name for name, lag in _LAGS.items() if lag == self.lag)}:{self.every}"

    @property
    def longest(self) -> int:
        """Delay of a period's last update."""
        return self.every * (1 + self.lag) - 1

    @property
    def settled(self) -> int:
        """See `DelayLaw.settled`: the first period trains on the starting policy's rollouts alone."""
        return self.every

    @property
    def period(self) -> int:
        """See `DelayLaw.period`."""
        return self.every

    def delay(self, _uniform: float, update: int, _sampler: int, /) -> int:
        """See `DelayLaw.delay`; neither random nor different between samplers."""
        return update - self.every * max(0, update // self.every - self.lag)


@dataclass(frozen=True, kw_only=True)
class OfflineLaw:
    """Every rollout is the starting policy's."""

    text = OFFLINE
    longest = _UNENDING
    settled = 0
    period = 1
    within_groups = False
    is_offline = True

    def delay(self, _uniform: float, update: int, _sampler: int, /) -> int:
        """See `DelayLaw.delay`."""
        return update


def parse_law(text: str, *, step_s: float | None = None) -> DelayLaw:
    """Parse a law; ConfigError on an invalid one.

    A distribution (`staleness_distributions.parse_staleness`) is drawn by each of the four samplers for its quarter of
    the prompts. `peers:A/B/C/D` gives sampler i the i-th distribution. `within:LAW` divides every group among the four
    samplers, two completions each, so that one group mixes four ages; LAW is a distribution or `peers:…`. `burst:K`:
    see `BurstLaw`; `stage:K` and `block:K`: see `PeriodicLaw`; `start`: see `OfflineLaw`. `step_s` is for distributions
    in seconds.
    """
    stripped = text.strip()
    if stripped == OFFLINE:
        return OfflineLaw()
    name, _, rest = stripped.partition(":")
    if name == "burst":
        burst = _BURST.fullmatch(stripped)
        if burst is None or int(burst[1]) < 1:
            raise ConfigError(f"{text[:60]!r} is not a delay law", remedy=_REMEDY)
        return BurstLaw(away=int(burst[1]))
    if name in _LAGS:
        periodic = _PERIODIC.fullmatch(stripped)
        if periodic is None or int(periodic[2]) < 1:
            raise ConfigError(f"{text[:60]!r} is not a delay law", remedy=_REMEDY)
        return PeriodicLaw(every=int(periodic[2]), lag=_LAGS[name])
    within = name == "within"
    if within:
        name, _, inner = rest.partition(":")
        stripped, rest = rest, inner
        if name in ("within", "burst", *_LAGS):
            raise ConfigError(f"{text[:60]!r} is not a delay law: {name} cannot stand within", remedy=_REMEDY)
    if name != "peers":
        return SharedLaw(distribution=parse_staleness(stripped, step_s=step_s), within_groups=within)
    parts = rest.split("/")
    require("number of peers", len(parts), 2 <= len(parts) <= SAMPLERS, f"2 to {SAMPLERS}, one for each sampler")
    distributions = tuple(parse_staleness(part, step_s=step_s) for part in parts)
    return PeerLaw(distributions=distributions, within_groups=within)


def steady_updates(law: DelayLaw, period: int) -> int:
    """Fewest updates, a multiple of `period` and at least three of them, at which a run under this law is steady."""
    return max(3 * period, -(-STEADY * law.longest // period) * period)


def is_steady(law: DelayLaw, updates: int) -> bool:
    """Whether `updates` is at least five times the longest delay."""
    return updates >= STEADY * law.longest
