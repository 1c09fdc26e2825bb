"""Caps of a batch: how much of an update one identity, and all newcomers together, may fill. Pure.

Keys are free, so a share of the training must not be had for keys alone. Of each update

* newcomers together fill at most `NEWCOMER_PERCENT` %, counted over the run: their places in update s of R groups are
  ⌊.15 R (s + 1)⌋ − ⌊.15 R s⌋, so that small batches have some too;
* one identity fills at most `IDENTITY_PERCENT` %, and always one group.

Both bind only while others have ready groups: places that known peers cannot fill are the newcomers', and within each
of the two classes the cap of an identity rises, for all alike, to the least that fills the class's places. So a swarm
of three shares in thirds, a swarm of newcomers alone shares everything, and an update never waits for a cap. Within the
caps the order is that of arrival.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

IDENTITY_PERCENT = 10
"""Of a batch, for one identity: ten are needed to fill one, and what one of them gets wrong is averaged away."""

NEWCOMER_PERCENT = 15
"""Of a batch, for all identities without standing together: fresh keys in any number move training no further. More
than one volunteer in ten is new only in a swarm's first minutes, when there is nobody else to fill its batches."""


@dataclass(frozen=True, slots=True)
class Contributor:
    """Whose group it is, as far as the caps are concerned."""

    identity: bytes
    """Public key that stands for all keys of one owner."""
    is_known: bool
    """Whether the identity has standing."""


def newcomer_places(step: int, count: int) -> int:
    """Groups of newcomers in the update that starts at `step`, of `count` groups, while known peers can fill it."""
    share = NEWCOMER_PERCENT * count
    return share * (step + 1) // 100 - share * step // 100


def identity_places(count: int) -> int:
    """Groups of one identity in a batch of `count`, while others can fill it."""
    return max(1, IDENTITY_PERCENT * count // 100)


def choose_batch(ready: Sequence[Contributor], count: int, *, newcomers: int) -> list[int]:
    """Indices of `count` of the ready groups, in their order; `newcomers` are the places of newcomers.

    There must be `count` ready groups: then there is always a batch.
    """
    assert len(ready) >= count
    known = [index for index, each in enumerate(ready) if each.is_known]
    others = [index for index, each in enumerate(ready) if not each.is_known]
    of_others = min(len(others), max(newcomers, count - len(known)))
    cap = identity_places(count)
    return sorted(_share(ready, known, min(count - of_others, len(known)), cap) + _share(ready, others, of_others, cap))


def _share(ready: Sequence[Contributor], among: Sequence[int], count: int, cap: int) -> list[int]:
    """The first `count` of the indices `among`, with as few above the cap of an identity as fill it."""
    level = _lowest_level(Counter(ready[index].identity for index in among), count, cap)
    taken: Counter[bytes] = Counter()
    chosen: list[int] = []
    for index in among:
        identity = ready[index].identity
        if len(chosen) < count and taken[identity] < level:
            taken[identity] += 1
            chosen.append(index)
    return chosen


def _lowest_level(ready: Counter[bytes], count: int, cap: int) -> int:
    """The least cap, from `cap` on, with which identities with these numbers of groups ready fill `count` places."""
    level = cap
    while sum(min(each, level) for each in ready.values()) < count:
        level += 1
    return level
