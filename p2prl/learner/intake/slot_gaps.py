"""Gaps in a peer's slots: slots that have not arrived, what they are charged, what is left of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from p2prl.protocol.wire_codec import Wire

LATER_SLOTS = 64
"""A slot counts as withheld only when the peer has delivered a slot this much higher: a peer that just stopped has
withheld nothing."""

COUNTED_PER_GAP = 4
"""Lost slots that one gap counts as, at most. A lost disk or an overfull spool leaves one gap, however long; and a peer
that skips whole stretches to choose among them needs stretches so long that they are alike on average."""

HasWork = Callable[[int, int], bool]
"""(version, slot) → whether the slot has valid work under this version; slots that have none are skipped."""


class Gap(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Slots that have not arrived, all in a row, below one that has."""

    first: int
    last: int
    below: int
    """Newest version of the slots below; −1 when there is none."""
    above: int
    """Version of the slot above."""
    since: float
    """Unix time when the slot above arrived, or when the gap was last filled from below."""
    counted: int = 0
    """Lost slots that it was counted as already."""
    searched: bool = False
    """Whether the slots without valid work have been taken out."""

    @property
    def slots(self) -> int:
        """Number of missing slots."""
        return self.last - self.first + 1


def charge(gap: Gap) -> int:
    """Lost slots that a gap counts as and has not been counted as yet."""
    slots = gap.last - gap.first + 1  # without calls: a learner asks for every gap of a peer at each of its groups
    owed = (slots if slots < COUNTED_PER_GAP else COUNTED_PER_GAP) - gap.counted
    return owed if owed > 0 else 0


def without(gap: Gap, slot: int, bounds: tuple[int, int], now: float) -> Iterator[Gap]:
    """What is left of a gap when one of its slots has arrived; `bounds` are the versions it sets above and below it."""
    below, above = bounds
    if gap.first < slot:
        yield replace(gap, last=slot - 1, above=above)
    if slot < gap.last:
        since = now if slot == gap.first else gap.since
        yield replace(gap, first=slot + 1, below=below, since=since)


def searched(gap: Gap, has_work: HasWork) -> Iterator[Gap]:
    """The parts of a gap whose slots have valid work. A long gap was not made by skipping, and is not searched."""
    if gap.searched:
        yield gap
        return
    if gap.slots > LATER_SLOTS:
        yield replace(gap, searched=True)
        return
    versions = {gap.above, gap.below} - {-1}
    first = None
    for slot in range(gap.first, gap.last + 2):
        missing = slot <= gap.last and all(has_work(version, slot) for version in versions)
        if missing and first is None:
            first = slot
        elif not missing and first is not None:
            yield replace(gap, first=first, last=slot - 1, searched=True)
            first = None
