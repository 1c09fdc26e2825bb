"""Standby: volunteers that the run can do without, chosen among those that agreed to it, dearest first.

A swarm with more volunteers than training needs shows as a queue of groups that never empties. Volunteers wait for
receipts then, so what they could sample cannot be measured, and the choice is made by trying: some of them stand by,
and if the queue still does not empty, some more. When it runs low they work again, cheapest first, and the next attempt
waits twice as long. A volunteer's cost is its price over the verified groups a second that the learner has seen of it;
what it says of its speed counts for nothing.

ECHO-2 (arXiv 2602.02192) activates machines by declared cost and speed. Here neither is believed: a low price only
makes a volunteer work, as all do that named none, and credit comes from verified groups alone. Pure.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

STANDBY_S = 300.0
"""How long a volunteer stands by without a newer message: three of them may be lost."""

RENEW_S = 90.0
"""Time after which the message is sent again."""

_PERIOD = 8
"""Updates that are watched before more stand by."""

_MOST_DRAINED = 0.125
"""Of the groups trained on while it watched, the share by which those left may have become fewer: more, and the ones
that work already bring less than is needed, however many are left."""

_RECALL_PERIOD = 3
"""Updates from one recall to the next: who works again brings its first group some updates later."""

_MOST_AT_ONCE = 0.25
"""Share of the measured groups a second that may be put on standby in one attempt."""

_LEAST_GROUPS = 4
"""Verified groups of a volunteer before it may stand by: newcomers are judged first, and its cost is measured."""

_LONGEST_WAIT = 128
"""Most updates from a shortage to the next attempt."""

_SILENT_S = 3600.0
"""A volunteer that was silent for this long has left."""

_MEMORY = 64
"""Groups of one volunteer that its pace is measured by."""


@dataclass(slots=True)
class _Pace:
    """Verified groups of a volunteer while it worked."""

    times: deque[float] = field(default_factory=lambda: deque(maxlen=_MEMORY))
    groups: int = 0

    @property
    def per_s(self) -> float:
        """Groups a second, from the first remembered group to the last."""
        seconds = self.times[-1] - self.times[0] if self.times else 0.0
        return (len(self.times) - 1) / seconds if seconds > 0.0 else 0.0


class StandbyChoice:
    """Watches the queue of groups after each update, and chooses who stands by."""

    def __init__(self, *, groups_per_update: int, most: int) -> None:
        """At most `most` volunteers stand by."""
        self._groups_per_update = groups_per_update
        self._most = most
        self._prices: dict[bytes, float] = {}
        self._paces: dict[bytes, _Pace] = {}
        self._on_standby: dict[bytes, None] = {}
        """In the order in which they began, the cheapest last."""
        self._calm = 0
        """Updates since the last change after each of which more than an update's groups were left."""
        self._waiting = 0
        """Groups that were left after the first of them."""
        self._recalled = 0
        """Updates since some were called back."""
        self._wait = _PERIOD

    @property
    def peers(self) -> tuple[bytes, ...]:
        """Who stands by."""
        return tuple(self._on_standby)

    @property
    def figures(self) -> dict[str, float]:
        """Volunteers on standby, as a key of the metrics log; empty while there are none."""
        return {"plan/standby": len(self._on_standby)} if self._on_standby else {}

    def offered(self, prices: dict[bytes, float]) -> None:
        """Take in who agrees to stand by, with what an hour of its work costs. Those missing work again."""
        self._prices = dict(prices)
        self._on_standby = {peer: None for peer in self._on_standby if peer in prices}

    def delivered(self, peer: bytes, now: float) -> None:
        """Record a group of a volunteer that has passed its check."""
        pace = self._paces.setdefault(peer, _Pace())
        pace.times.append(now)
        pace.groups += 1

    def left(self, peer: bytes) -> None:
        """Let the cheapest on standby work in place of a volunteer that has left, as many as bring what it brought.

        Nobody waits until groups run low: the next attempt comes as soon as after any other change. A volunteer that
        comes back is a newcomer to the choice, so that one whose link fails again and again calls nobody a second time
        before it has delivered again.
        """
        was_on_standby = self._on_standby.pop(peer, peer) is None
        pace = self._paces.pop(peer, None)
        if was_on_standby or pace is None or pace.groups < _LEAST_GROUPS:
            return
        missing = pace.per_s
        for each in self._cheapest_first():
            if missing <= 0.0:
                return
            missing -= self._paces[each].per_s
            self._call(each)

    def updated(self, now: float, *, waited: float, waiting: int) -> None:
        """Choose anew after an update.

        `waiting` groups are stored or verified and not trained on yet; `waited` is the share of the time since the
        update before in which there was none to train on or to check. A learner that waits for its own checks needs
        nobody.
        """
        self._forget(now)
        self._recalled += 1
        if self._on_standby and (waiting < self._groups_per_update // 2 or waited > 1.0 / _PERIOD):
            if self._recalled >= _RECALL_PERIOD:
                self._recall()
        elif waiting < self._groups_per_update:
            self._calm = 0
        else:
            self._calm += 1
            if self._calm == 1:
                self._waiting = waiting
            if self._calm >= self._wait:
                trained = (self._calm - 1) * self._groups_per_update
                if waiting >= self._waiting - _MOST_DRAINED * trained:
                    self._dismiss()
                self._calm = 0

    def _dismiss(self) -> None:
        """Put the dearest on standby: at least one, and at most `_MOST_AT_ONCE` of what comes at present."""
        working = {peer: pace.per_s for peer, pace in self._paces.items() if peer not in self._on_standby}
        left = _MOST_AT_ONCE * sum(working.values())
        willing = [peer for peer in working if peer in self._prices and self._paces[peer].groups >= _LEAST_GROUPS]
        first = True
        for peer in sorted(willing, key=lambda each: (-self._cost(each), each)):
            if len(self._on_standby) >= self._most or len(working) <= 1:
                return
            if working[peer] <= left or first:
                left -= working.pop(peer)
                self._on_standby[peer] = None
                first = False

    def _recall(self) -> None:
        """Let the cheaper half of them work again, at least one, and put off the next attempt."""
        cheapest = self._cheapest_first()
        for peer in cheapest[: -(-len(cheapest) // 2)]:
            self._call(peer)
        self._calm = self._recalled = 0
        self._wait = min(_LONGEST_WAIT, 2 * self._wait)

    def _cheapest_first(self) -> list[bytes]:
        """Who stands by."""
        return sorted(self._on_standby, key=lambda each: (self._cost(each), each))

    def _call(self, peer: bytes) -> None:
        del self._on_standby[peer]
        del self._paces[peer]  # its silence would count as slowness
        self._calm = 0

    def _forget(self, now: float) -> None:
        for peer, pace in list(self._paces.items()):
            if now - pace.times[-1] > _SILENT_S and peer not in self._on_standby:
                del self._paces[peer]

    def _cost(self, peer: bytes) -> float:
        """Price of a verified group, in hours' prices a group a second."""
        pace = self._paces[peer].per_s
        return self._prices.get(peer, 0.0) / pace if pace > 0.0 else 0.0
