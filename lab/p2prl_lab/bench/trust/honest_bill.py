"""Honest volunteers under outages, sleep and kills: how many of their groups a learner voids. None should be.

The learner's side is `Books`. A volunteer samples its slots in order, several at once, so that they end in some other
order; it offers what was not stored again, oldest first.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from p2prl.protocol.digests import digest
from p2prl_lab.bench.trust.books import GROUPS_PER_UPDATE, UPDATE_S, Books, Offer

VOLUNTEERS = 3
_IN_FLIGHT = 8
_BEFORE_S = 1_200.0
_AFTER_S = 2_400.0
_KILLS = 50
_KILLED_EVERY_S = 60.0
_OFFERED_AGAIN = 16
"""Groups offered again at once, as a volunteer does."""

_ROUNDS = 4
"""Times that this happens in the time of an update."""

OUTAGES = {"outage of 10 minutes": 600.0, "outage of 1 hour": 3_600.0, "outage of 8 hours": 8 * 3_600.0}
"""Seconds in which the learner gets only what trickles through."""

TRICKLES = (0.0, 0.01, 0.05, 0.1, 0.2, 0.25, 0.5)
"""Shares of the groups that gossip carries meanwhile."""

EVENTS: tuple[tuple[str, float], ...] = (
    *((event, trickle) for event in OUTAGES for trickle in TRICKLES),
    ("sleep of 8 hours", 0.0),
    ("kill -9 at 50 points", 0.0),
    ("restart of the only relay", 0.5),
)
"""(event, trickle) of the rows."""

_RELAY_RESTARTS_S = 60.0
_SLEEP_S = 8 * 3_600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class BillRow:
    """What an event costs honest volunteers."""

    event: str
    trickle: float
    groups: int
    """Groups that they sampled."""
    voided: int
    """Those that were neither credited nor too late for training."""
    waiting: int
    """Those that were not stored in the end."""


@dataclass(slots=True)
class _Volunteer:
    """Samples slots and keeps what the learner has not stored."""

    peer: bytes
    rng: random.Random
    next_slot: int = 0
    in_flight: dict[int, int] = field(default_factory=dict)
    """Version by slot."""
    free: list[int] = field(default_factory=list)
    """Slots that were in flight when the machine stopped."""
    spool: dict[int, int] = field(default_factory=dict)

    def sample(self, groups: int, version: int) -> Iterator[Offer]:
        """Complete this many groups. A version is loaded when nothing is in flight, as the client does."""
        for _ in range(groups):
            if not self.in_flight:
                slots = self.free[:_IN_FLIGHT]
                slots += range(self.next_slot, self.next_slot + _IN_FLIGHT - len(slots))
                self.next_slot = max(self.next_slot, slots[-1] + 1)
                self.free = self.free[_IN_FLIGHT:]
                self.in_flight = dict.fromkeys(slots, version)
            slot = self.rng.choice(sorted(self.in_flight))
            self.spool[slot] = self.in_flight.pop(slot)
            yield Offer(self.peer, slot, self.spool[slot])

    def kill(self) -> None:
        """Lose what is in flight."""
        self.free = sorted({*self.free, *self.in_flight})
        self.in_flight.clear()

    def offer(self, books: Books, offer: Offer) -> None:
        """Offer one group."""
        if books.offer(offer):
            self.spool.pop(offer.slot, None)

    def offer_again(self, books: Books) -> None:
        """Offer the oldest groups that were not stored."""
        for _ in range(_ROUNDS):
            for slot in sorted(self.spool)[:_OFFERED_AGAIN]:
                self.offer(books, Offer(self.peer, slot, self.spool[slot]))


def bill_row(event: str, trickle: float, seed: int = 0) -> BillRow:
    """One event, in a run of some volunteers."""
    rng = random.Random(f"{event} {trickle} {seed}")  # noqa: S311 - simulated
    people = [
        _Volunteer(digest("p2prl/bench/honest", bytes([number])), random.Random(f"{event} {trickle} {seed} {number}"))  # noqa: S311
        for number in range(VOLUNTEERS)
    ]
    with tempfile.TemporaryDirectory(prefix="p2prl-bill-") as folder:
        books = Books(Path(folder))
        _let_work(books, people, _BEFORE_S, rng)
        if event in OUTAGES:
            _let_work(books, people, OUTAGES[event], rng, carried=trickle)
        elif event.startswith("restart"):
            _let_work(books, people, _RELAY_RESTARTS_S, rng, carried=trickle)
        elif event.startswith("sleep"):
            books.wait(_SLEEP_S)
        else:
            for _ in range(_KILLS):
                _let_work(books, people, _KILLED_EVERY_S, rng)
                rng.choice(people).kill()
        _let_work(books, people, _AFTER_S, rng)
        for _ in range(1_000):
            if not any(each.spool for each in people):
                break
            _let_work(books, people, UPDATE_S, rng, sampling=False)
        books.close()
    return BillRow(
        event=event,
        trickle=trickle,
        groups=sum(each.next_slot for each in people),
        voided=len(books.voided),
        waiting=sum(len(each.spool) for each in people),
    )


def _let_work(
    books: Books, people: list[_Volunteer], seconds: float, rng: random.Random, *, carried: float = 1.0,
    sampling: bool = True,
) -> None:  # fmt: skip
    """Let volunteers and learner work. Of what all but the last sample the share `carried` arrives.

    While that is not all of it, they offer nothing again. The last volunteer keeps the learner going: what waits grows
    stale.
    """
    for _ in range(round(seconds / UPDATE_S)):
        with books.arrivals():
            for each in people:
                due = GROUPS_PER_UPDATE / VOLUNTEERS + rng.random() if sampling else 0.0
                arrives = 1.0 if each is people[-1] else carried
                for offer in each.sample(int(due), books.step):
                    if rng.random() < arrives:
                        each.offer(books, offer)
                if arrives == 1.0:
                    each.offer_again(books)
        books.work()
        books.wait(UPDATE_S)
