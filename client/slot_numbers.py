"""A volunteer's slot numbers over the whole run: which are done, and which are sampled next. Pure.

They continue over policy versions: a learner takes one group of each, and a data task's rows come in order, each once a
pass. A slot that was lost in a crash is sampled again, under the policy that is loaded then. What is remembered does
not grow with the run: the lowest slot that is not done, and the few above it that are.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator

_SLOTS_PER_S = 100
"""Slots that no key fills in a second, so that a machine that has lost its spool starts above all it has used."""

_LAST_START = 3 << 30
"""Highest start: a fourth of the numbers is left above it. A run reaches it after a year."""


def first_slot(created_ms: int, now: float) -> int:
    """The slot at which a machine without any memory of the run starts: one that its key cannot have used.

    `created_ms` is when the run was created. Its key may have worked before, on a disk that is lost.
    """
    return min(_LAST_START, max(0, int(_SLOTS_PER_S * (now - created_ms / 1000))))


class SlotNumbers:
    """Slots that are done, in flight, and free."""

    def __init__(self, lowest: int = 0, done_above: Collection[int] = ()) -> None:
        """`lowest` is the first slot that is not done, `done_above` those above it that are."""
        self._lowest = lowest
        self._done_above = set(done_above)
        self._in_flight: set[int] = set()

    @property
    def lowest(self) -> int:
        """Lowest slot that is not done: every one below has a group, or was skipped."""
        return self._lowest

    @property
    def in_flight(self) -> int:
        """Slots submitted and not done."""
        return len(self._in_flight)

    def submitted(self, slots: Iterable[int]) -> None:
        """These slots are in flight."""
        self._in_flight.update(slots)

    def done(self, slots: Iterable[int]) -> None:
        """These slots have a group, or are skipped."""
        self._in_flight.difference_update(slots := set(slots))
        self._done_above |= {slot for slot in slots if slot >= self._lowest}
        while self._lowest in self._done_above:
            self._done_above.remove(self._lowest)
            self._lowest += 1

    def skip_to(self, slot: int) -> None:
        """Go on with this slot, unless it is lower than the next one. Slots in flight are completed."""
        if slot > self._lowest:
            self._lowest = slot
            self._done_above = {done for done in self._done_above if done >= slot}
            self.done(())

    def dropped(self) -> None:
        """Nothing is in flight any more: what was, is free again."""
        self._in_flight.clear()

    def free(self) -> Iterator[int]:
        """Free slots, the lowest first: none is left out."""
        taken = (self._done_above, self._in_flight)
        return (slot for slot in itertools.count(self._lowest) if not any(slot in slots for slots in taken))
