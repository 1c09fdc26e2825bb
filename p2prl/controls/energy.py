"""Energy that a worker's machine measures: counters of its parts, added up while the worker works. Pure functions.

A counter counts its whole part of the machine, other programs included: no sensor tells them apart. What is not
measured is left out, never estimated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from p2prl.controls.owner_values import Price

JOULES_A_KWH = 3.6e6

CARD, PROCESSOR, MEMORY = "card", "processor", "memory"

MOST_GAP_S = 30.0
"""Between two readings: after a longer gap, as a sleep of the machine, a counter may have begun anew more than once."""

MOST_WATTS = 5_000.0
"""Of one part: what seems to be more is a counter that was set back."""

WATTS_S = 5.0
"""Time over which watts are averaged: counters move in steps."""

LEAST_RATED_KWH = 0.001
"""Below, tokens a kWh are noise."""


@dataclass(frozen=True, slots=True)
class EnergyCounter:
    """A counter as it was read."""

    name: str
    """Which one it is, unique on the machine."""
    part: str
    """What it counts: `CARD`, `PROCESSOR` or `MEMORY`."""
    joules: float
    range_joules: float | None = None
    """Where it begins anew; None for one that does not."""


@dataclass(frozen=True, slots=True)
class EnergyUse:
    """What was measured since the worker's start."""

    joules: float = 0.0
    """While it worked."""
    watts: float | None = None
    """Now; None before the second reading."""
    parts: tuple[str, ...] = ()
    """What is measured; empty for nothing."""


@dataclass(slots=True)
class EnergyMeter:
    """Adds up readings, about one a second."""

    joules: float = 0.0
    _last: dict[str, EnergyCounter] = field(default_factory=dict)
    _parts: dict[str, None] = field(default_factory=dict)
    _newest: deque[tuple[float, float]] = field(default_factory=deque)
    _read_at: float | None = None

    def note(self, now: float, counters: Iterable[EnergyCounter], card_watts: float | None, *, worked: bool) -> None:
        """Take a reading. `worked` says whether the worker did since the last one; `card_watts` are added up where no
        counter counts the card."""
        found = {each.name: each for each in counters}
        seconds = 0.0 if self._read_at is None else now - self._read_at
        known = 0.0 < seconds <= MOST_GAP_S
        spent = [used for each in found.values() if known and (used := self._used(each, seconds)) is not None]
        parts = {each.part for each in found.values()}
        if card_watts is not None and CARD not in parts:
            parts.add(CARD)
            if known:
                spent.append(card_watts * seconds)
        self._parts |= dict.fromkeys(part for part in (CARD, PROCESSOR, MEMORY) if part in parts)
        if not known:
            self._newest.clear()
        elif spent:
            self._newest.append((seconds, sum(spent)))
            while sum(each for each, _ in self._newest) - self._newest[0][0] >= WATTS_S:
                self._newest.popleft()
            self.joules += sum(spent) if worked else 0.0
        self._last, self._read_at = found, now

    def _used(self, counter: EnergyCounter, seconds: float) -> float | None:
        """Joules since the last reading; None where they cannot be told."""
        before = self._last.get(counter.name)
        if before is None:
            return None
        used = counter.joules - before.joules
        if used < 0.0 and counter.range_joules is not None:
            used += counter.range_joules
        return used if 0.0 <= used <= MOST_WATTS * seconds else None

    @property
    def use(self) -> EnergyUse:
        """What was measured so far."""
        seconds = sum(each for each, _ in self._newest)
        watts = sum(used for _, used in self._newest) / seconds if seconds else None
        return EnergyUse(self.joules, watts, tuple(self._parts))


@dataclass(slots=True)
class EnergyAccount:
    """Energy of a worker in one run, of this session and of those before, beside the tokens that were verified."""

    earlier_kwh: float = 0.0
    earlier_tokens: int = 0
    _tokens_before: int | None = None

    @classmethod
    def going_on(cls, document: object) -> EnergyAccount:
        """After the session that left this document, which may be of another version or damaged."""
        found = document if isinstance(document, dict) else {}
        kwh, tokens = found.get("total_kwh"), found.get("total_tokens")
        if not isinstance(kwh, int | float) or not isinstance(tokens, int) or kwh < 0.0 or tokens < 0:
            return cls()
        return cls(float(kwh), tokens)

    def document(self, use: EnergyUse, verified_tokens: int, price: Price) -> dict[str, Any] | None:
        """The account as a JSON value; None where nothing was ever measured. `verified_tokens` are all of the run's."""
        if self._tokens_before is None:
            self._tokens_before = verified_tokens
        if not use.parts and not self.earlier_kwh:
            return None
        kwh = use.joules / JOULES_A_KWH
        tokens = verified_tokens - self._tokens_before if use.parts else 0
        total_kwh, total_tokens = self.earlier_kwh + kwh, self.earlier_tokens + tokens
        found: dict[str, Any] = {
            "of": list(use.parts),
            "watts": None if use.watts is None else round(use.watts, 1),
            "kwh": round(kwh, 6),
            "tokens": tokens,
            "tokens_per_kwh": tokens_per_kwh(tokens, kwh),
            "total_kwh": round(total_kwh, 6),
            "total_tokens": total_tokens,
        }
        if price.amount:
            found |= {"cost": round(kwh * price.amount, 4), "currency": price.currency}
        return found


def tokens_per_kwh(tokens: int, kwh: float) -> int | None:
    """Verified tokens a kWh; None before there are enough of both to say."""
    return round(tokens / kwh) if tokens and kwh >= LEAST_RATED_KWH else None
