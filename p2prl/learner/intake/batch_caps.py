"""Caps of a batch: how much of an update one identity, and all newcomers together, may fill. Pure.

Keys are free, so a share of the training must not be had for keys alone. Of each update

* newcomers together fill at most `NEWCOMER_PERCENT` %, counted over the run: their places in update s of R groups are
  ⌊.15 R (s + 1)⌋ − ⌊.15 R s⌋, so that small batches have some too;
* one identity fills at most `IDENTITY_PERCENT` %, counted likewise, and always one group;
* peers that are not *proven*, whose few groups may be chosen ones, fill nothing.

All bind only while others have ready groups: places that known peers cannot fill are the newcomers', what these cannot
fill is for the rest, and within each of the three classes the cap of an identity rises, for all alike, to the least
that fills the class's places. So a swarm of three shares in thirds, a swarm of newcomers alone shares everything, and
an update never waits for a cap. Within the caps the order is that of arrival.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
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
    """Whether the identity has full standing."""
    is_proven: bool = True
    """Whether it has delivered without gaps for as long as makes a newcomer; a known one has."""


def newcomer_places(step: int, count: int) -> int:
    """Groups of newcomers in the update that starts at `step`, of `count` groups, while known peers can fill it."""
    return _places(NEWCOMER_PERCENT * count, step)


def identity_places(identity: bytes, step: int, count: int) -> int:
    """Groups of one identity in the update that starts at `step`, of `count` groups, while others can fill it.

    Not all identities have their larger number in the same updates: else ten of them could not fill the others.
    """
    return max(1, _places(IDENTITY_PERCENT * count, step, int.from_bytes(identity[:4], "little") % 100))


def choose_batch(ready: Sequence[Contributor], count: int, *, step: int) -> list[int]:
    """Indices of `count` of the ready groups, in their order, for the update that starts at `step`.

    There must be `count` ready groups: then there is always a batch.
    """
    assert len(ready) >= count
    caps = {each.identity: identity_places(each.identity, step, count) for each in ready}
    known = [index for index, each in enumerate(ready) if each.is_known]
    newcomers = [index for index, each in enumerate(ready) if each.is_proven and not each.is_known]
    others = [index for index, each in enumerate(ready) if not each.is_proven]
    invited = min(newcomer_places(step, count), _within(_sizes(ready, newcomers), caps, 0))
    of_newcomers = min(len(newcomers), count, max(invited, count - len(known)))
    of_known = min(len(known), count - of_newcomers)
    chosen = _share(ready, known, of_known, caps) + _share(ready, newcomers, of_newcomers, caps)
    return sorted(chosen + _share(ready, others, count - len(chosen), caps))


def _places(percent: int, step: int, start: int = 0) -> int:
    """Of update `step`: over the run they add up to the share, however small the batches are."""
    return (percent * (step + 1) + start) // 100 - (percent * step + start) // 100


def _share(ready: Sequence[Contributor], among: Sequence[int], count: int, caps: Mapping[bytes, int]) -> list[int]:
    """The first `count` of the indices `among`, with as few above the caps of their identities as fill it."""
    sizes = _sizes(ready, among)
    above = 0
    while _within(sizes, caps, above) < count:
        above += 1
    taken: Counter[bytes] = Counter()
    chosen: list[int] = []
    for index in among:
        identity = ready[index].identity
        if len(chosen) < count and taken[identity] < caps[identity] + above:
            taken[identity] += 1
            chosen.append(index)
    return chosen


def _sizes(ready: Sequence[Contributor], among: Sequence[int]) -> Counter[bytes]:
    """Ready groups by identity."""
    return Counter(ready[index].identity for index in among)


def _within(sizes: Counter[bytes], caps: Mapping[bytes, int], above: int) -> int:
    """Groups there are with at most `above` more of each identity than its cap."""
    return sum(min(size, caps[identity] + above) for identity, size in sizes.items())
