"""Allowances of which the last part is for those below an equal share.

What comes back is dealt in equal parts to the places that used some in the last minute: a subnet, or a peer of
standing. Dozens of places that ask all the time use up no more than the first part, and a newcomer finds some. Pure.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

from p2prl.swarm.token_buckets import Rate

_ACTIVE_S = 60.0
"""How long a place has a share after it used some: what it leaves is the others'."""

_DEALT_SHARE = 7 / 8
"""Part of what comes back that is dealt. With all of it, what places draw at first would never come back."""

_PLACES = 4_096
"""Places remembered; those that left are among them, so that reconnecting buys nothing."""


class Allowance:
    """Tokens of a bucket that the last user may overdraw."""

    def __init__(self, rate: Rate) -> None:
        """It begins full."""
        self.rate = rate
        self._left = rate.burst
        self._at = -math.inf

    def left(self, now: float) -> float:
        """Tokens that are left."""
        self._left = min(self.rate.burst, self._left + max(0.0, now - self._at) * self.rate.per_s)
        self._at = max(self._at, now)
        return self._left

    def take(self, tokens: float) -> None:
        """Use some."""
        self._left -= tokens


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A place after it used some."""

    left: float
    dealt: float
    """What each place had been dealt by then."""
    at: float


class SharedAllowance(Allowance):
    """Tokens that places share."""

    def __init__(self, rate: Rate, place_burst: float) -> None:
        """A place has `place_burst` tokens at first, and at most."""
        super().__init__(rate)
        self._place_burst = place_burst
        self._drawn: OrderedDict[str, _Drawn] = OrderedDict()
        """The place that used some last at the end."""
        self._dealt = 0.0
        """Tokens that each of them was dealt since the start."""
        self._dealt_at = -math.inf

    def is_due(self, place: str, now: float, reserve: float = 0.0) -> bool:
        """Whether a place has more than this part of its own tokens left."""
        return self._left_to(place, now) > reserve * self._place_burst

    def use(self, place: str, tokens: float, now: float) -> None:
        """Use some, for a place."""
        self.take(tokens)
        self._drawn[place] = _Drawn(self._left_to(place, now) - tokens, self._dealt, now)
        self._drawn.move_to_end(place)
        if len(self._drawn) > _PLACES:
            self._drawn.popitem(last=False)

    def _left_to(self, place: str, now: float) -> float:
        """Tokens of a place; a newcomer has all."""
        self._deal(now)
        drawn = self._drawn.get(place)
        return self._place_burst if drawn is None else min(self._place_burst, drawn.left + self._dealt - drawn.dealt)

    def _deal(self, now: float) -> None:
        if self._drawn:
            dealt = _DEALT_SHARE * max(0.0, now - self._dealt_at) * self.rate.per_s
            self._dealt += dealt / len(self._drawn)
        self._dealt_at = max(self._dealt_at, now)
        while self._drawn:
            place, drawn = next(iter(self._drawn.items()))
            if now - drawn.at < _ACTIVE_S or drawn.left + self._dealt < drawn.dealt:
                break
            del self._drawn[place]
