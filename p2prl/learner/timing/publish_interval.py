"""Publish interval: κ, chosen from measured times of updates and broadcasts.

A new version must reach the swarm well before the next one, and a group sampled with the old one must still be within
the staleness bound when it is used. With S the staleness bound, T_train the seconds of an update and T_bcast the
seconds until a version is in use at the last active peer (ECHO-2, arXiv 2602.02192, §4):

    κ ≥ T_bcast / T_train                                              a version is everywhere before the next is due
    κ ≤ S − ceil(T_bcast / T_train) − ceil(T_queue / T_train)          groups sampled with it are still in time

The first bound keeps work fresh, the second keeps any work usable at all. If both cannot hold, the second decides.
T_bcast is measured until nearly every active peer has delivered a group of the version. It includes the sampling of
that group, so it is a conservative estimate. Pure; `pacing` feeds it.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

_MEASUREMENTS = 8
"""Versions and updates in a measurement: enough for a median, few enough to follow a changing swarm."""

_NEARLY_ALL = 0.9
"""Share of active peers a version must have reached. The slowest tenth must not slow the learner down."""

_ACTIVE_S = 600.0
"""A peer that has delivered nothing for this long has left. Measured in time, not in versions: slow peers skip
versions, and dropping them for that would publish ever faster and drop more."""

_OPEN_VERSIONS = 256
"""Versions whose broadcast may still be in progress."""

_LEAST_MEASUREMENTS = 3
"""Broadcasts and updates to measure before κ changes for the first time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishIntervalConfig:
    """Bounds of the choice."""

    staleness_bound: int
    """S: updates."""
    least: int
    """κ is never below this; the run manifest promises it."""
    most: int
    """κ is never above this: a longer silence would look like a learner that stopped."""


@dataclass(frozen=True, slots=True)
class Choice:
    """κ and the times it was chosen from, seconds."""

    publish_every: int
    train_s: float
    broadcast_s: float
    queue_s: float
    feasible: bool
    """Whether a version reaches the swarm before the next within the staleness bound."""


def choose(config: PublishIntervalConfig, *, train_s: float, broadcast_s: float, queue_s: float) -> Choice:
    """κ for these times, seconds: the smallest that fits, since fresher work is better."""
    updates = broadcast_s / max(train_s, 1e-9)
    fresh = max(config.least, math.floor(updates) + 1)  # strictly more than a broadcast takes
    in_time = config.staleness_bound - math.ceil(updates) - math.ceil(queue_s / max(train_s, 1e-9))
    chosen = max(config.least, min(fresh, in_time, config.most))
    return Choice(chosen, train_s, broadcast_s, queue_s, updates < chosen <= max(in_time, 0))


class PublishInterval:
    """Measures updates, broadcasts and waiting groups, and chooses κ from them."""

    def __init__(self, config: PublishIntervalConfig, *, publish_every: int) -> None:
        """`publish_every` applies until enough has been measured."""
        self._config = config
        self._choice = Choice(publish_every, math.nan, math.nan, math.nan, feasible=True)
        self._updates: deque[float] = deque(maxlen=_MEASUREMENTS)
        self._broadcasts: deque[float] = deque(maxlen=_MEASUREMENTS)
        self._queues: deque[float] = deque(maxlen=64)
        self._published: dict[int, float] = {}
        self._seen: dict[bytes, tuple[int, float]] = {}
        self._updated_at = math.nan

    @property
    def choice(self) -> Choice:
        """The current choice."""
        return self._choice

    def updated(self, now: float) -> None:
        """Record that an update is done."""
        if not math.isnan(self._updated_at):
            self._updates.append(now - self._updated_at)
        self._updated_at = now

    def published(self, version: int, now: float) -> None:
        """Record that a version was published."""
        self._published[version] = now
        self._published = {v: at for v, at in self._published.items() if v > version - _OPEN_VERSIONS}

    def delivered(self, peer: bytes, version: int, now: float) -> None:
        """Record that a peer delivered a group of `version`."""
        reached, _ = self._seen.get(peer, (-1, now))
        self._seen[peer] = max(reached, version), now
        self._seen = {peer: seen for peer, seen in self._seen.items() if now - seen[1] <= _ACTIVE_S}
        for done in sorted(v for v in self._published if v <= version):
            behind = sum(seen < done for seen, _ in self._seen.values())
            if behind <= (1.0 - _NEARLY_ALL) * len(self._seen):
                self._broadcasts.append(now - self._published.pop(done))
                self._choose()

    def used(self, waited_s: float) -> None:
        """Record that a group was trained on `waited_s` after its check."""
        self._queues.append(waited_s)

    def _choose(self) -> None:
        if min(len(self._broadcasts), len(self._updates)) >= _LEAST_MEASUREMENTS:
            self._choice = choose(
                self._config,
                train_s=_median(self._updates),
                broadcast_s=_median(self._broadcasts),
                queue_s=_median(self._queues),
            )


def _median(values: deque[float]) -> float:
    """The upper median; 0 if empty."""
    return sorted(values)[len(values) // 2] if values else 0.0
