"""The run as a volunteer sees it: a learning curve and the next version's date, from messages it gets anyway.

The learner's receipts for everybody pass through every volunteer. Nothing is asked of anybody for these figures, so
they begin when this machine joined. What needs the whole ledger, as a rank does, is the board's alone. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from p2prl.protocol.ledger_messages import Receipts, ReceiptState

MOST_MACHINES = 4_096
"""Keys that are counted: an honest run has fewer, and a hostile learner must not fill this machine's memory."""

MOST_POINTS = 128
"""Points of the curve. Past it two neighbors become one, so that the whole run fits on a screen."""

_REMEMBERED = 1_024
"""Batches of receipts known by their digest: a network that comes back repeats the newest ones."""

_MARKS = 32
"""Learner steps that the pace is measured over: the recent past tells when the next version comes."""

_CREDITED = (ReceiptState.VERIFIED, ReceiptState.CREDITED_BY_SAMPLING)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunView:
    """What is known of the run besides this machine's own work."""

    step: int = -1
    """Newest learner step heard of; −1 before the first."""
    curve: tuple[tuple[int, float], ...] = ()
    """(learner step, mean reward of all credited completions), oldest first."""
    machines: int = 0
    """Machines with a group judged since `since`."""
    since: float | None = None
    """Unix time of the first receipts seen; None before."""
    next_share: float | None = None
    """Share of the learner's updates done until the next version; None while unknown."""
    next_s: float | None = None
    """Seconds until the next version, at the pace of the last updates; None while unknown."""
    cut_off_since: float | None = None
    """Unix time since which no peer is linked; None while one is, and before the first."""


class RunWatch:
    """Counts what passes by. Each call takes `now`, Unix seconds."""

    def __init__(self, author: bytes) -> None:
        """`author` is this machine's public key."""
        self._author = author
        self._machines: set[bytes] = set()
        self._curve = _Curve()
        self._known: dict[bytes, None] = {}
        self._since: float | None = None
        self._marks: deque[tuple[int, float]] = deque(maxlen=_MARKS)
        self._version_step = -1
        self._linked = False
        self._cut_off_since: float | None = None

    def on_receipts(self, receipts: Receipts, digest: bytes, now: float) -> None:
        """The learner has judged these groups; `digest` names the envelope, which counts once."""
        if digest in self._known:
            return
        self._known[digest] = None
        if len(self._known) > _REMEMBERED:
            del self._known[next(iter(self._known))]
        self._since = now if self._since is None else self._since
        self._mark(receipts.step, now)
        for receipt in receipts.receipts:
            if receipt.peer == self._author or len(self._machines) < MOST_MACHINES:
                self._machines.add(receipt.peer)
            if receipt.state in _CREDITED:
                self._curve.add(receipts.step, receipt.reward, receipt.completions)

    def on_version(self, step: int, now: float) -> None:
        """The learner has published a version at this step."""
        self._version_step = max(self._version_step, step)
        self._mark(step, now)

    def on_links(self, peers: Mapping[str, int], now: float) -> None:
        """The links are these now."""
        linked = any(peers.values())
        if linked:
            self._cut_off_since = None
        elif self._linked:
            self._cut_off_since = now
        self._linked = linked

    def view(self, now: float, *, publish_every: int) -> RunView:
        """The figures; `publish_every` is the learner's updates between versions, 0 while it is unknown."""
        step = self._marks[-1][0] if self._marks else -1
        share, seconds = self._next(step, now, publish_every)
        return RunView(
            step=step,
            curve=self._curve.points(),
            machines=len(self._machines),
            since=self._since,
            next_share=share,
            next_s=seconds,
            cut_off_since=self._cut_off_since,
        )

    def _mark(self, step: int, now: float) -> None:
        if not self._marks or step > self._marks[-1][0]:
            self._marks.append((step, now))

    def _next(self, step: int, now: float, every: int) -> tuple[float | None, float | None]:
        if every <= 0 or self._version_step < 0:
            return None, None
        done = min(every, step - self._version_step)
        (first, began), (last, ended) = self._marks[0], self._marks[-1]
        if last - first < 2:  # one interval may hold a pause of the learner
            return done / every, None
        pace_s = (ended - began) / (last - first)
        return done / every, max(0.0, (every - done) * pace_s - (now - ended))


class _Curve:
    """Mean rewards by learner step, in at most `MOST_POINTS` points of equal width."""

    def __init__(self) -> None:
        self._width = 1
        self._sums: dict[int, tuple[float, int]] = {}

    def add(self, step: int, reward: float, completions: int) -> None:
        self._put(step // self._width, reward * completions, completions)
        while len(self._sums) > MOST_POINTS:
            self._width *= 2
            before, self._sums = self._sums, {}
            for place, (total, count) in before.items():
                self._put(place // 2, total, count)

    def points(self) -> tuple[tuple[int, float], ...]:
        ordered = sorted(self._sums.items())
        return tuple((place * self._width, total / count) for place, (total, count) in ordered if count)

    def _put(self, place: int, total: float, count: int) -> None:
        before = self._sums.get(place, (0.0, 0))
        self._sums[place] = before[0] + total, before[1] + count
