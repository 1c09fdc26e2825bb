"""Churn of homes: who is away when and how, and whether memory stays level. Pure."""

from __future__ import annotations

import random
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

LINE_WAYS = ("offline", "asleep", "moved")
"""Absences that leave a home's processes alive: its line is down, they are stopped, or it has another address
after that."""

PROCESS_WAYS = ("left", "killed", "offline")
"""Absences of a home whose owner ends it: Ctrl-C, SIGKILL, or only its line."""

_PRESENT_S, _AWAY_S = (90.0, 240.0), (20.0, 120.0)
_LEARNER_AWAY_S = 20.0
_SETTLE_S = 120.0
"""At the end nobody is away, so that what is under way arrives."""


@dataclass(frozen=True, slots=True)
class Absence:
    """One site is away from `from_s` until `until_s`, in seconds since the begin."""

    from_s: float
    until_s: float
    name: str
    way: str


@dataclass(frozen=True, slots=True)
class MemorySample:
    """Resident memory of one process at one moment."""

    at_s: float
    name: str
    part: str
    """`network`, or `daemon`."""
    pid: int
    resident_bytes: int


def absences(homes: Sequence[str], learner: str, duration_s: float, rng: random.Random) -> list[Absence]:
    """What happens in `duration_s`, by time of the begin: every second home is ended and started again, the others keep
    their processes, and the learner is killed after one third and after two."""
    planned = [
        Absence(third * duration_s / 3, third * duration_s / 3 + _LEARNER_AWAY_S, learner, "killed") for third in (1, 2)
    ]
    for number, name in enumerate(homes):
        ways = PROCESS_WAYS if number % 2 else LINE_WAYS
        from_s = rng.uniform(*_PRESENT_S)
        while (until_s := from_s + rng.uniform(*_AWAY_S)) < duration_s - _SETTLE_S:
            planned.append(Absence(from_s, until_s, name, rng.choice(ways)))
            from_s = until_s + rng.uniform(*_PRESENT_S)
    return sorted(planned, key=lambda absence: absence.from_s)


def memory_rows(samples: Iterable[MemorySample], least_s: float) -> list[dict[str, Any]]:
    """One row for each process that lived for `least_s` or longer: `name`, `part`, `lived_s`, `early_mb` (median of the
    second quarter of its life: the first one fills caches), `late_mb` (of the last quarter) and `growth`, late over
    early."""
    lives: dict[tuple[str, str, int], list[MemorySample]] = defaultdict(list)
    for sample in samples:
        lives[sample.name, sample.part, sample.pid].append(sample)
    found = []
    for (name, part, _), its_samples in sorted(lives.items()):
        begin, end = its_samples[0].at_s, its_samples[-1].at_s
        lived_s = end - begin
        if lived_s < least_s or len(its_samples) < 4:
            continue
        early = _median([s for s in its_samples if begin + lived_s / 4 <= s.at_s <= begin + lived_s / 2])
        late = _median([s for s in its_samples if s.at_s >= end - lived_s / 4])
        found.append(
            {
                "name": name,
                "part": part,
                "lived_s": round(lived_s),
                "early_mb": round(early / 1e6, 1),
                "late_mb": round(late / 1e6, 1),
                "growth": round(late / early, 3),
            }
        )
    return found


def _median(samples: list[MemorySample]) -> float:
    return statistics.median(sample.resident_bytes for sample in samples)
