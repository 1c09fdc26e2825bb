"""Overruns by account: an author whose answers ran out of time gets less of it for a while.

Pure: the caller passes the time. An author is known by its account, its public key; how many authors are remembered is
bounded over all of them, so fresh keys cannot grow the table.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from p2prl.errors import require

MEMORY_S = 600.0
"""How long an overrun counts, seconds: an honest model that learns to write stranger text recovers within minutes."""

SHORTEST_LIMIT_S = 0.25
"""Smallest limit of an author, seconds: far above what an honest answer takes (milliseconds), on a busy machine too."""

MAX_ACCOUNTS = 4096
"""Authors remembered; the one whose last overrun is oldest is forgotten first."""

OWN_ACCOUNT = b""
"""Account of answers that this machine sampled itself, as in an evaluation: nobody to hold off, and one score for
the same answer whatever came before it."""

_MAX_COUNTED = 8
"""Overruns kept of one author: beyond these the limit is the shortest anyway."""


class OverrunLedger:
    """Overruns of the last minutes, and the limits that follow from them."""

    def __init__(self, limit_s: float) -> None:
        """`limit_s`: seconds for an answer of an author without overruns. `ConfigError` below the shortest limit."""
        require("limit_s", limit_s, limit_s >= SHORTEST_LIMIT_S, f"{SHORTEST_LIMIT_S} or more")
        self._limit_s = limit_s
        self._overruns: OrderedDict[bytes, deque[float]] = OrderedDict()

    def __len__(self) -> int:
        """Authors remembered."""
        return len(self._overruns)

    def charge(self, account: bytes, now: float) -> None:
        """Count an overrun at `now` (seconds, any origin), but none of `OWN_ACCOUNT`."""
        if account == OWN_ACCOUNT:
            return
        times = self._overruns.setdefault(account, deque(maxlen=_MAX_COUNTED))
        times.append(now)
        self._overruns.move_to_end(account)
        while len(self._overruns) > MAX_ACCOUNTS:
            self._overruns.popitem(last=False)

    def count(self, account: bytes, now: float) -> int:
        """Overruns that still count. An author without any is forgotten."""
        times = self._overruns.get(account)
        if times is None:
            return 0
        while times and now - times[0] >= MEMORY_S:
            times.popleft()
        if not times:
            del self._overruns[account]
        return len(times)

    def limit_s(self, account: bytes, now: float) -> float:
        """Seconds for the author's next answer: halved by each overrun, down to the shortest limit."""
        return max(SHORTEST_LIMIT_S, self._limit_s / 2.0 ** self.count(account, now))
