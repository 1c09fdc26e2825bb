"""Forecast of a running learner: the share of its time in which it will be at work, and what came of the last forecast.

With λ the verified groups a second of the volunteers that are still there, B the groups that are ready, R the groups of
an update and T the seconds of an update when no group is waited for, the next N updates take

    N · max(T, (N R − B) / (N λ)) seconds                                  utilization = N T / those seconds

It is ECHO-2's rule (arXiv 2602.02192, §4) on measured rates. A volunteer's rate counts what the learner verified of it
and nothing that it claims, so that slow replays and lost groups are in it. Pure.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, variance

UPDATES = 16
"""N: updates that a forecast looks ahead."""

_MOST_DELIVERIES = 4096
"""Of a swarm that delivers more than this within N updates the newest tell its rate as well."""

_LEAST_DELIVERIES = 8
"""Fewer within N updates tell nothing."""

_SILENCES = 2.0
"""A volunteer has left when it is silent for this many times its longest silence."""

_PARTS = 8
"""Parts of the measured time, by which it shows how unsteady the flow of groups is."""

_QUANTILE = 1.2816
"""Eight of ten draws of a normal distribution are at most this many deviations from its mean."""


@dataclass(frozen=True, slots=True)
class LiveForecast:
    """Of the next `UPDATES` updates."""

    utilization: float
    low: float
    high: float
    """Eight of ten lie between these while volunteers neither come nor go."""
    volunteers: int
    """Those that are counted on."""


class Forecaster:
    """Measures deliveries and updates; foresees the next updates, and holds what it foresaw against what came."""

    def __init__(self, *, groups_per_update: int) -> None:
        self._groups_per_update = groups_per_update
        self._deliveries: deque[tuple[float, bytes]] = deque(maxlen=_MOST_DELIVERIES)
        self._updates: deque[tuple[float, float]] = deque(maxlen=UPDATES)
        """Of each update the seconds since the one before, and those of them at work."""
        self._updated_at = math.nan
        self._newest: LiveForecast | None = None
        self._judged: LiveForecast | None = None
        """The forecast that is judged `UPDATES` updates after it was made."""
        self._until_verdict = 0
        self._error: float | None = None
        self._misses = 0

    def delivered(self, peer: bytes, now: float) -> None:
        """Record a group of a volunteer that has passed its check."""
        self._deliveries.append((now, peer))

    def updated(self, now: float, *, at_work: float, ready: int) -> str | None:
        """Record that an update is done, the share of the time since the one before in which the learner was at work,
        and the groups that are ready.

        The answer is a sentence for the operator once two forecasts after each other were missed.
        """
        if not math.isnan(self._updated_at):
            seconds = now - self._updated_at
            self._updates.append((seconds, seconds * at_work))
        self._updated_at = now
        if len(self._updates) < UPDATES:
            return None
        self._newest = self._forecast(now, ready)
        self._until_verdict -= 1
        if self._until_verdict > 0:
            return None
        foreseen, self._judged, self._until_verdict = self._judged, self._newest, UPDATES
        return None if foreseen is None else self._verdict(foreseen)

    @property
    def figures(self) -> dict[str, float]:
        """Forecast, what came, and the newest error, as keys of the metrics log; empty before `UPDATES` updates."""
        if len(self._updates) < UPDATES:
            return {}
        figures = {"plan/realised": self._realized()}
        if self._newest is not None:
            figures |= {
                "plan/predicted_utilisation": self._newest.utilization,
                "plan/low": self._newest.low,
                "plan/high": self._newest.high,
                "plan/volunteers": self._newest.volunteers,
            }
        return figures if self._error is None else figures | {"plan/error": self._error}

    def _realized(self) -> float:
        return math.fsum(at_work for _, at_work in self._updates) / math.fsum(seconds for seconds, _ in self._updates)

    def _verdict(self, foreseen: LiveForecast) -> str | None:
        realized = self._realized()
        self._error = foreseen.utilization - realized
        missed = not foreseen.low - 0.01 <= realized <= foreseen.high + 0.01
        self._misses = self._misses + 1 if missed else 0
        if self._misses != 2:  # one of five forecasts may miss by chance; a second one says so once
            return None
        return (
            f"training had groups for {realized:.0%} of the last {UPDATES} updates' time, where {foreseen.low:.0%} to"
            f" {foreseen.high:.0%} was foreseen from {foreseen.volunteers} volunteers' pace: volunteers came or went,"
            " or their pace changed"
        )

    def _forecast(self, now: float, ready: int) -> LiveForecast | None:
        update_s = math.fsum(at_work for _, at_work in self._updates) / UPDATES
        begins = now - math.fsum(seconds for seconds, _ in self._updates)
        if len(self._deliveries) == _MOST_DELIVERIES:  # those before them are not kept, and cannot be counted
            begins = max(begins, self._deliveries[0][0])
        since: dict[bytes, float] = {}
        counted: dict[bytes, list[float]] = {}
        for at, peer in self._deliveries:
            since.setdefault(peer, max(at, begins))
            if at > begins:
                counted.setdefault(peer, []).append(at)
        times = sorted(at - begins for each in counted.values() for at in each)
        if len(times) < _LEAST_DELIVERIES or update_s <= 0.0:
            return None
        rates = [rate for peer, each in counted.items() if (rate := _rate(each, since[peer], now)) > 0.0]
        needed = UPDATES * self._groups_per_update
        deviation = math.sqrt(_unsteadiness(times, now - begins) * (1.0 / len(times) + 1.0 / needed))

        def utilization(quantile: float) -> float:
            rate = math.fsum(rates) * max(0.0, 1.0 + quantile * deviation)
            missing = needed - ready
            return min(1.0, UPDATES * update_s * rate / missing) if missing > 0 else 1.0

        return LiveForecast(utilization(0.0), utilization(-_QUANTILE), utilization(_QUANTILE), len(rates))


def _rate(times: list[float], since: float, now: float) -> float:
    """Groups a second of a volunteer with these deliveries, measured since then; 0 if it has left.

    One that came meanwhile is measured from its first delivery on: what it sampled before took time that the learner
    has not seen.
    """
    longest = max(after - before for before, after in pairwise([since, *times]))
    if now - times[-1] > _SILENCES * max(longest, (now - since) / (len(times) + 1)):
        return 0.0
    return sum(at > since for at in times) / (now - since) if now > since else 0.0


def _unsteadiness(times: list[float], measured_s: float) -> float:
    """Variance of the groups that come in a part of the measured time over their mean: 1 for a Poisson flow."""
    parts = Counter(min(int(at / measured_s * _PARTS), _PARTS - 1) for at in times)
    numbers = [parts[number] for number in range(_PARTS)]
    return variance(numbers) / fmean(numbers)
