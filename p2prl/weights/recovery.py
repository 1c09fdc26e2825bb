"""What to do with words that a crash may have left half moved: a decision over digests, nothing else.

A move takes the words from a base to a target, segment by segment, and its log holds both sides of every segment it
touches. The claim (`state.json`) names one side and changes last. So what is found on disk says how far a move got.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from p2prl.protocol.digests import Digest


class Side(Enum):
    """An end of a move."""

    BASE = "base"
    TARGET = "target"

    @property
    def other(self) -> Side:
        return Side.TARGET if self is Side.BASE else Side.BASE


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """How to bring every segment to one side."""

    side: Side
    """Where the words belong."""
    write: tuple[int, ...] = ()
    """Segments to write from the log, that side's words."""
    damaged: tuple[int, ...] = ()
    """Segments that neither are right nor can be made right here."""


def decide(
    *, claimed: Side, found: Sequence[Digest], expected: Sequence[Digest], other: Mapping[int, Digest]
) -> Recovery:
    """`found` are the digests of the words as they are, `expected` those of the claimed side, and `other` those of
    the other side for the segments in the log.

    A move begins only when every segment is in its log, and no word is written outside a move. So words that differ
    from the claim beside a whole log are a move under way: it is completed. Beside less than a whole log they are
    damage: what the log holds is put back and the rest reported.
    """
    strange = [i for i, (was, promised) in enumerate(zip(found, expected, strict=True)) if was != promised]
    if not strange:
        return Recovery(side=claimed)
    if len(other) == len(expected):
        return Recovery(side=claimed.other, write=tuple(i for i, was in enumerate(found) if was != other[i]))
    return Recovery(
        side=claimed,
        write=tuple(i for i in strange if i in other),
        damaged=tuple(i for i in strange if i not in other),
    )
